"""Rerankers that are language models: the score of a pair is the logit of "yes" minus the logit of "no"."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.messages import in_the_name_of, shown
from ...layers._constructor_arguments import WeightDType, checked_dtypes
from ..architecture.family import GENERATION
from ..architecture.model import Model
from ..architecture.open import open_model
from ..files.entries import Entries
from ..files.folder import FolderSource
from ..files.json_files import read_json
from ..files.modules_json import read_logit_score
from ..files.sentence_files import SentenceConfig, read_sentence_config, settings_file
from ..text.batching import batches, packed, slabs
from ..text.chat_template import ChatTemplate
from ..text.inputs import text_or_pair
from ..text.text_call import TokensOfText
from ..text.tokenizer import Tokenizer, require_library
from .labels import Labels

_ST_TASK = "text-generation"  # the name in sentence-transformers

# In sentence-transformers a template with one of these words gets messages in parts, not as texts.
_WORDS_OF_PARTS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")

# Texts of messages with different tokens: the tokens that both renderings end with come from the template.
_FILLERS = ("0", "1 2 3 4")

Pair = tuple[str, str]


class _Answers(NamedTuple):
    """The head of pairs whose last token is followed by an answer."""

    model: Model
    tokens: tuple[int, ...]  # of "yes", and perhaps of "no"

    def __call__(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[np.float32]:
        chosen = self.model.logits(rows[cu_seqlens[1:] - 1], num_threads)[:, self.tokens].astype(np.float32)
        scores: NDArray[np.float32] = chosen[:, :1] - chosen[:, 1:].sum(axis=1, keepdims=True)
        return scores


class TokenRanker:
    """A language model whose chat template asks whether a document fits a query, in the place of a `Classifier`."""

    labels = Labels(("LABEL_0",), "sigmoid")

    def __init__(
        self,
        model: Model,
        library: Any,
        template: ChatTemplate,
        adds_generation_prompt: bool,
        answers: tuple[int, ...],
        config: SentenceConfig,
        folder: Path,
    ) -> None:
        self.model, self.config, self.folder = model, config, folder
        self._library, self._template = library, template
        self._adds_generation_prompt = adds_generation_prompt
        self._answers = answers  # the token of "yes", and perhaps the token of "no"

    def with_model(self, model: Model) -> "TokenRanker":
        """Return the same ranker over another model, such as the same one in another dtype."""
        other = copy.copy(self)
        other.model = model
        return other

    def cut_at(self, function: str, max_seq_length: int) -> "TokenRanker":
        """Return the same ranker for at most `max_seq_length` tokens of a pair."""
        other = copy.copy(self)
        with in_the_name_of(function, max_length="max_seq_length"):
            length = self.model.config.checked_length(function, max_seq_length)
        other.config = self.config._replace(max_seq_length=length)
        return other

    def logits(
        self, what: str, inputs: Iterable[Any], prompt: str, num_threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores [n, 1] of the next n pairs, in order. The prompt is the message of the system.

        Errors call the inputs `what`. Inputs are read as needed, a bounded number of pairs ahead.
        """
        for batch in batches(self._tokenized(what, inputs, prompt)):
            tokens, cu_seqlens = packed(batch)
            with in_the_name_of(what):
                rows = self.model.hidden_states(tokens, cu_seqlens, num_threads)
                scores = self._head(rows, cu_seqlens, num_threads)
            yield scores

    def texts_of(self, what: str, inputs: Iterable[Any], prompt: str) -> list[TokensOfText]:
        """Return the tokens of pairs, whose results are the scores [1]. The arguments are as for `logits`."""
        head = self._head
        return [TokensOfText(ids, [], head) for ids in self._tokenized(what, inputs, prompt)]

    def count_tokens(self, what: str, inputs: Iterable[Any], prompt: str) -> list[int]:
        """Return the number of tokens of whole pairs, before any cut. The arguments are as for `logits`."""
        return [len(encoding.ids) for encoding in self._encodings(what, inputs, prompt)]

    @property
    def _head(self) -> _Answers:
        return _Answers(self.model, self._answers)

    def _tokenized(self, what: str, inputs: Iterable[Any], prompt: str) -> Iterator[list[int]]:
        most = self.config.max_seq_length
        suffix = self._suffix(prompt)[-most:]
        for encoding in self._encodings(what, inputs, prompt):
            # The end of the template follows a text that is cut.
            yield encoding.ids if len(encoding.ids) < most else [*encoding.ids[: most - len(suffix)], *suffix]

    def _encodings(self, what: str, inputs: Iterable[Any], prompt: str) -> Iterator[Any]:
        for slab in slabs(_pairs(what, inputs)):
            with in_the_name_of(what):
                texts = [self._rendered(pair, prompt) for pair in slab]
                encodings = self._library.encode_batch(texts, add_special_tokens=False)
            yield from encodings

    def _suffix(self, prompt: str) -> list[int]:
        """Return the tokens that the template ends with, whatever the texts are."""
        first, second = (
            self._library.encode(self._rendered((filler, filler), prompt), add_special_tokens=False).ids
            for filler in _FILLERS
        )
        count = 0
        while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
            count += 1
        tail: list[int] = first[len(first) - count :]
        return tail

    def _rendered(self, pair: Pair, prompt: str) -> str:
        messages = [{"role": "system", "content": prompt}] if prompt else []
        messages += [{"role": "query", "content": pair[0]}, {"role": "document", "content": pair[1]}]
        return self._template.render(messages, self._adds_generation_prompt, {})


def is_token_ranker(directory: Path) -> bool:
    """Return whether the model in `directory` is a language model for rankings, in the files of sentence-transformers.

    Raises OSError or ValueError if modules.json or config.json cannot be read.
    """
    if (directory / "modules.json").exists():
        return read_logit_score(directory) is not None
    architectures = read_json(directory / "config.json", dict).get("architectures")
    return isinstance(architectures, list) and str(next(iter(architectures), "")).endswith("ForCausalLM")


def load_token_ranker(function: str, home: Path, dtype: DTypeLike, weight_dtype: WeightDType) -> TokenRanker:
    """Open the language model in the directory `home` as a ranker: see `is_token_ranker`.

    Raises the errors of `CausalLM.from_pretrained`.
    """
    require_library()
    kind, stored = checked_dtypes(function, dtype, weight_dtype)
    modules = read_logit_score(home)
    folder = home if modules is None else modules[0]
    source = FolderSource(folder)
    opened = open_model(source, GENERATION)
    most = opened.config.max_positions or 0
    texts = read_sentence_config(folder, most, modules is not None, task=_ST_TASK)
    Entries(folder / "tokenizer_config.json", texts.tokenizer).expect({"truncation_side": "right"})
    template = ChatTemplate(source.path, source.chat_template, source.tokenizer_config)
    library = source.tokenizer()
    vocab_size = opened.config.vocab_size
    Tokenizer(library).check_vocabulary(source.path, vocab_size)
    if modules is None:
        answers = tuple(_token_of(folder, library, word) for word in ("yes", "no"))
    else:
        answers = _answers(modules[1], vocab_size)
    settings = settings_file(folder) if modules is not None else None
    if settings is not None:
        Entries.read(settings).expect({"do_lower_case": False})
    if settings is None and any(word in (source.chat_template or "") for word in _WORDS_OF_PARTS):
        raise ValueError(f"{folder}: the chat template must take messages as texts, and not in parts")
    adds = settings is not None and _adds_generation_prompt(Entries.read(settings))
    ranker = TokenRanker(opened.load(kind, stored), library, template, adds, answers, texts, folder)
    _check_template(ranker)
    return ranker


def _pairs(what: str, inputs: Iterable[Any]) -> Iterator[Pair]:
    for i, given in enumerate(inputs):
        pair = text_or_pair(what, given, i)
        if isinstance(pair, str):
            raise TypeError(f"{what} must be pairs of texts for a language model; got a text at {i}")
        yield pair


def _check_template(ranker: TokenRanker) -> None:
    """Refuse a template that leaves out the query or the document."""
    plain, *others = (ranker._rendered(pair, "") for pair in (("a", "a"), ("b", "a"), ("a", "b")))
    if plain in others:
        raise ValueError(f"{ranker.folder}: the chat template must have messages of the roles query and document")


def _token_of(folder: Path, library: Any, word: str) -> int:
    token: int | None = library.token_to_id(word)
    if token is None:
        raise ValueError(f"{folder / 'tokenizer.json'} must have a token {word!r}, whose logit is the score of a pair")
    return token


def _answers(entries: Entries, vocab_size: int) -> tuple[int, ...]:
    """Read the tokens of "yes" and "no" from config.json of a LogitScore."""
    entries.refuse_others({"true_token_id", "false_token_id", "module_input_name"})
    entries.expect({"module_input_name": "causal_logits"})
    names = ["true_token_id", *(["false_token_id"] if entries.has("false_token_id") else [])]
    answers = tuple(entries.count(name) for name in names)
    if max(answers) >= vocab_size:
        raise ValueError(f"{entries.path}: tokens must be from 0 to {vocab_size - 1}; got {shown(list(answers))}")
    return answers


def _adds_generation_prompt(settings: Entries) -> bool:
    """Read the only argument of the chat template that has an effect here; `read_sentence_config` refuses others."""
    options = (settings.values.get("processing_kwargs") or {}).get("chat_template") or {}
    return Entries(f"{settings.path}: processing_kwargs", options).flag("add_generation_prompt")
