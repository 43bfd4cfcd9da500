"""config_sentence_transformers.json: prompts before texts, the similarity, and the number of features to keep."""

from collections.abc import Container, Iterable
from pathlib import Path
from typing import NamedTuple

from ...functions.messages import listed, name_of_type, shown
from ..files.entries import Entries

_USUAL = {"query": "", "document": ""}  # every model has these prompts, which can be empty

# Names of prompts of queries and of documents; the first that a model has counts.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

SETTINGS_FILE = "config_sentence_transformers.json"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


def first_known(names: Iterable[str], prompts: Container[str]) -> str | None:
    """Return the first of `names` that is a prompt, or None."""
    return next((name for name in names if name in prompts), None)


class Prompts(NamedTuple):
    """The prompts of a model, which it puts before texts."""

    by_name: dict[str, str]
    default_name: str | None  # the prompt of calls that name none

    def chosen(self, function: str, prompt_name: str | None, prompt: str | None, names: Iterable[str] = ()) -> str:
        """Return the prompt of a call: the prompt itself, the prompt with this name, the first of `names` that the
        model has, or the default.

        Raises TypeError or ValueError if an argument is not a str, if the name is unknown, if both are given, or if the
        prompt holds half of a surrogate pair.
        """
        for what, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{function}: {what} must be a str; got {name_of_type(value)}")
        if prompt is not None:
            if not is_text(prompt):
                raise ValueError(f"{function}: prompt holds half of a surrogate pair; got {shown(prompt)}")
            if prompt_name is not None:
                raise ValueError(f"{function}: prompt and prompt_name exclude each other; got {shown(prompt_name)}")
            return prompt
        prompt_name = first_known(names, self.by_name) if prompt_name is None else prompt_name
        if prompt_name is None:
            return "" if self.default_name is None else self.by_name[self.default_name]
        if prompt_name not in self.by_name:
            known = listed(list(self.by_name))
            raise ValueError(f"{function}: prompt_name must be one of the model, {known}; got {shown(prompt_name)}")
        return self.by_name[prompt_name]


class Settings(NamedTuple):
    """The settings of a model of sentence-transformers."""

    prompts: Prompts = Prompts(_USUAL, None)
    truncate_dim: int | None = None  # features of an embedding that are kept
    similarity: str = "cosine"
    max_active_dims: int | None = None  # numbers of a sparse vector that are kept


_MAXSIM = ("maxsim", "meanmaxsim")

# The similarity of each type of model without an entry, and whether it has the usual prompts.
_TYPES = {
    "SentenceTransformer": ("cosine", True),
    "CrossEncoder": ("cosine", False),
    "SparseEncoder": ("dot", True),
    "MultiVectorEncoder": ("maxsim", True),
    "ColBERT": ("maxsim", True),
}


def read_settings(directory: Path, model_type: str = "SentenceTransformer") -> Settings:
    """Read the settings in the directory of a model of sentence-transformers. The file can be missing.

    Raises OSError or ValueError if the file cannot be read or is damaged, or if the model is of another type.
    """
    path = directory / SETTINGS_FILE
    similarity, has_usual = _TYPES[model_type]
    usual = _USUAL if has_usual else {}
    if not path.exists():
        return Settings(Prompts(usual, None), similarity=similarity)
    entries = Entries.read(path)
    entries.expect({"model_type": model_type})
    values = entries.values
    given = values.get("prompts", {})
    if not isinstance(given, dict) or not all(text is None or is_text(text) for text in given.values()):
        raise ValueError(f"{path}: prompts must be an object of texts; got {shown(given)}")
    by_name = usual | {name: text or "" for name, text in given.items()}
    default = values.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in by_name):
        raise ValueError(
            f"{path}: default_prompt_name must be one of prompts, {listed(list(by_name))}; got {shown(default)}"
        )
    name = "similarity_fn_name"
    if model_type == "ColBERT":  # older files name the similarity of two tokens
        known: tuple[str, ...] = ("MaxSim", "cosine", "dot")
    else:
        known = _MAXSIM if similarity == "maxsim" else _SIMILARITIES
    found = entries.choice(name, *known) if entries.has(name) else similarity
    similarity = similarity if model_type == "ColBERT" else found
    most = entries.size_or_none("max_active_dims")
    return Settings(Prompts(by_name, default), entries.size_or_none("truncate_dim"), similarity, most)


def is_text(value: object) -> bool:
    """Return whether `value` is a str without halves of surrogate pairs."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
