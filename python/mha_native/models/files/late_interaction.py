"""The files of multi-vector encoders: of sentence-transformers, of PyLate, and of ColBERT.

Each layout has the same parts: markers before texts, lengths, query expansion, tokens that are left out, and the steps
after the transformer.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import listed, shown
from .entries import Entries
from .json_files import read_json
from .modules_json import Module, kinds_listed, read_listed
from .sentence_files import settings_file

SETTINGS_FILE = "config_sentence_transformers.json"
METADATA_FILE = "artifact.metadata"

# Default lengths of PyLate, and features of ColBERT.
_PYLATE_QUERY, _PYLATE_DOCUMENT = 32, 180
_COLBERT_FEATURES = 128

_PYLATE_KEYS = (
    "query_prefix", "document_prefix", "query_length", "document_length", "attend_to_expansion_tokens",
    "skiplist_words", "do_query_expansion",
)  # fmt: skip

_AFTER_TRANSFORMER = ("Dense", "Normalize", "MultiVectorMask")


class Expansion(NamedTuple):
    """How short queries are filled up with tokens, of which each has a vector, too."""

    length: int
    attends: bool  # whether tokens attend to the added ones
    token: str | None  # None: the mask token
    cuts: bool  # whether longer queries are cut to `length`


class Skipped(NamedTuple):
    """The tokens whose vectors are left out."""

    words: tuple[str, ...] = ()
    of_queries: bool = False
    of_documents: bool = True
    kept_ids: tuple[int, ...] = ()  # of documents no other tokens are kept; empty: all


class LateInteractionFiles(NamedTuple):
    """The parts of a multi-vector encoder."""

    transformer: Path
    steps: tuple[Module, ...]  # Dense and Normalize
    inline_features: int | None  # of linear.weight, a projection among the weights of the transformer; None: none
    normalize: bool  # at the end, without a module
    is_listed: bool  # the settings of sentence-transformers count
    markers: tuple[str | None, str | None]  # a token after the first one, of queries and documents
    query_length: int | None
    document_length: int | None
    expansion: Expansion | None
    skipped: Skipped


def is_late_interaction(home: Path) -> bool:
    """Return whether the files in `home` are those of a multi-vector encoder.

    Raises OSError or ValueError if a file cannot be read.
    """
    if (home / "modules.json").exists():
        kinds = kinds_listed(home)
        return kinds[:2] == ["Transformer", "Dense"] or "MultiVectorMask" in kinds
    path = home / "config.json"
    return path.exists() and _is_colbert(read_json(path, dict))


def read_late_interaction(home: Path) -> LateInteractionFiles:
    """Read the parts of the multi-vector encoder in `home`.

    Raises OSError or ValueError if a file cannot be read or is damaged, or asks for an unsupported feature.
    """
    if (home / "modules.json").exists():
        path = home / SETTINGS_FILE
        settings = Entries.read(path) if path.exists() else Entries(path, {})
        modules = read_listed(home, "Transformer", _AFTER_TRANSFORMER, "a multi-vector encoder")
        has_keys = not settings.values.keys().isdisjoint(_PYLATE_KEYS)
        is_pylate = has_keys or settings.values.get("model_type") == "ColBERT"
        return _of_pylate(settings, modules) if is_pylate else _of_sentence_transformers(home, modules)
    return _of_colbert(home)


def _of_sentence_transformers(home: Path, modules: list[Module]) -> LateInteractionFiles:
    folder = modules[0].folder
    path = settings_file(folder)
    entries = Entries(folder, {}) if path is None else Entries.read(path)
    masks = [module for module in modules if module.kind == "MultiVectorMask"]
    expansion = _expansion(Entries(f"{entries.path}: query_expansion", _object(entries, "query_expansion")))
    if len(masks) > 1 or (expansion is not None and not masks):
        need = "one MultiVectorMask" if expansion is not None else "at most one MultiVectorMask"
        raise ValueError(f"{home / 'modules.json'} must list {need}; got {len(masks)}")
    return LateInteractionFiles(
        folder,
        tuple(module for module in modules[1:] if module.kind != "MultiVectorMask"),
        inline_features=None,
        normalize=False,
        is_listed=True,
        markers=(None, None),
        query_length=entries.size_or_none("query_length"),
        document_length=entries.size_or_none("document_length"),
        expansion=expansion,
        skipped=_skipped(Entries.read(masks[0].folder / "config.json")) if masks else Skipped(),
    )


def _of_pylate(settings: Entries, modules: list[Module]) -> LateInteractionFiles:
    if kinds := [module.kind for module in modules[1:] if module.kind != "Dense"]:
        raise ValueError(f"{settings.path}: PyLate has Transformer and Dense in modules.json; got {listed(kinds)}")
    query_length = settings.size("query_length", _PYLATE_QUERY) if settings.has("query_length") else _PYLATE_QUERY
    expands = settings.flag("do_query_expansion", True) if settings.has("do_query_expansion") else True
    name = "attend_to_expansion_tokens"
    attends = settings.flag(name) if settings.has(name) else False
    return LateInteractionFiles(
        modules[0].folder,
        tuple(modules[1:]),
        inline_features=None,
        normalize=True,
        is_listed=True,
        markers=(_marker(settings, "query_prefix", "[Q] "), _marker(settings, "document_prefix", "[D] ")),
        query_length=query_length,
        document_length=settings.size_or_none("document_length") or _PYLATE_DOCUMENT,
        expansion=Expansion(query_length, attends, None, True) if expands else None,
        skipped=Skipped(_words(settings, "skiplist_words", string.punctuation)),
    )


def _of_colbert(home: Path) -> LateInteractionFiles:
    path = home / "config.json"
    config = read_json(path, dict)
    if not _is_colbert(config):
        architectures = config.get("architectures")
        raise ValueError(
            f"{path}: architectures must be HF_ColBERT without modules.json, for a multi-vector encoder; "
            f"got {shown(architectures)}"
        )
    metadata = Entries.read(home / METADATA_FILE)
    length = metadata.size("query_maxlen")
    metadata.expect({"similarity": "cosine"})
    punctuation = metadata.flag("mask_punctuation", True)
    return LateInteractionFiles(
        home,
        (),
        inline_features=metadata.size("dim", _COLBERT_FEATURES),
        normalize=True,
        is_listed=False,
        markers=(_marker(metadata, "query_token_id", "[unused0]"), _marker(metadata, "doc_token_id", "[unused1]")),
        query_length=length,
        document_length=metadata.size("doc_maxlen"),
        expansion=Expansion(length, metadata.flag("attend_to_mask_tokens"), None, True),
        skipped=Skipped(tuple(string.punctuation) if punctuation else ()),
    )


def _is_colbert(config: Mapping[str, Any]) -> bool:
    architectures = config.get("architectures")
    return isinstance(architectures, list) and architectures[:1] == ["HF_ColBERT"]


def _marker(entries: Entries, name: str, default: str) -> str | None:
    """Return a token, or None for an empty one."""
    value = entries.values.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{entries.path}: {name} must be a token; got {shown(value)}")
    return default if value is None else value or None


def _words(entries: Entries, name: str, default: Any = ()) -> tuple[str, ...]:
    value = entries.values.get(name)
    if value is None:
        return tuple(default)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{entries.path}: {name} must be a list of tokens; got {shown(value)}")
    return tuple(value)


def _object(entries: Entries, name: str) -> Any:
    value = entries.values.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{entries.path}: {name} must be an object; got {shown(value)}")
    return value or {}


def _expansion(entries: Entries) -> Expansion | None:
    """Read query_expansion of sentence-transformers; empty: none."""
    if not entries.values:
        return None
    entries.refuse_others(("strategy", "attend", "token", "length"))
    token = entries.values.get("token")
    if token is not None and not isinstance(token, str):
        raise ValueError(f"{entries.path}: token must be a token; got {shown(token)}")
    cuts = entries.choice("strategy", "fixed", "min") == "fixed"
    return Expansion(entries.size("length"), entries.flag("attend"), token, cuts)


def _skipped(entries: Entries) -> Skipped:
    """Read the settings of a MultiVectorMask."""
    entries.refuse_others(("skiplist_words", "skiplist_tasks", "keep_only_token_ids"))
    tasks = _words(entries, "skiplist_tasks", ("document",))
    if not set(tasks) <= {"query", "document"}:
        raise ValueError(f"{entries.path}: skiplist_tasks must be of 'query' and 'document'; got {shown(list(tasks))}")
    kept = entries.values.get("keep_only_token_ids")
    if kept is not None and not (isinstance(kept, list) and all(type(token) is int for token in kept)):
        raise ValueError(f"{entries.path}: keep_only_token_ids must be a list of integers; got {shown(kept)}")
    return Skipped(_words(entries, "skiplist_words"), "query" in tasks, "document" in tasks, tuple(kept or ()))
