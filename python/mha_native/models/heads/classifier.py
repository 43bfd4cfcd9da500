"""A transformer with the head of a classifier, which all classes that score texts share."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ... import _core
from ...functions.deprecation import renamed, renamed_keyword
from ...functions.messages import in_the_name_of
from ...layers._constructor_arguments import WeightDType, checked_dtypes
from ..architecture.family import EMBEDDING
from ..architecture.model import Model
from ..architecture.open import open_model
from ..files.folder import FolderSource
from ..files.hub_cache import find_directory
from ..files.json_files import read_json
from ..files.modules_json import read_transformer
from ..files.sentence_files import SentenceConfig, read_sentence_config
from ..pretrained import PretrainedModel
from ..text.agreement import class_of_tokenizer
from ..text.batching import batches, packed, slabs
from ..text.inputs import text_or_pair
from ..text.text_call import TokensOfText
from ..text.tokenizer import Tokenizer, read_tokenizer, require_library
from .classification import TEXTS, TOKENS, ClassificationHead, head_of
from .labels import Labels, read_labels

# Classes in tokenizer_config.json of tokenizers that return token types, if it has no model_input_names.
_CLASSES_WITH_TYPES = (
    *(None, "BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast"),
    *("DebertaV2Tokenizer", "DebertaV2TokenizerFast"),
)

_ST_TASK = "sequence-classification"  # the name in sentence-transformers

Public = TypeVar("Public", bound="PretrainedClassifier")


class Tokens(NamedTuple):
    """The tokens of a text, or of a pair of texts."""

    ids: list[int]
    types: list[int]


class _Logits(NamedTuple):
    """The head of texts with labels: [L] for each text, or [T, L] if each token has labels."""

    head: ClassificationHead
    of_tokens: bool

    def __call__(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> Iterable[NDArray[np.float32]]:
        if self.of_tokens:
            return np.split(self.head(rows), cu_seqlens[1:-1])
        if self.head.pooling == "mean":
            return self.head(_core.mean_pool(rows, cu_seqlens, False, None, num_threads))
        return self.head(rows[cu_seqlens[:-1]])


class Classifier:
    """A transformer, a tokenizer and a head, as `load_classifier` reads them."""

    def __init__(
        self,
        model: Model,
        head: ClassificationHead,
        tokenizer: Tokenizer,
        labels: Labels,
        config: SentenceConfig,
        has_types: bool,
        folder: Path,
    ) -> None:
        self.model, self.head, self.tokenizer = model, head, tokenizer
        self.labels, self.config = labels, config
        self._has_types = has_types
        self.folder = folder  # of config.json

    def with_model(self, model: Model) -> "Classifier":
        """Return the same classifier over another transformer, such as the same one in another dtype."""
        other = copy.copy(self)
        other.model = model
        return other

    def cut_at(self, function: str, max_seq_length: int) -> "Classifier":
        """Return the same classifier for the first `max_seq_length` tokens of a long text or pair."""
        other = copy.copy(self)
        with in_the_name_of(function, max_length="max_seq_length"):
            length = self.model.config.checked_length(function, max_seq_length)
            other.tokenizer = self.tokenizer.cut_at(length)
        other.config = self.config._replace(max_seq_length=length)
        return other

    def logits(
        self, what: str, inputs: Iterable[Any], prompt: str, num_threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the logits [n, L] of the next n texts or pairs, in order. The prompt is put before each first text.

        Errors call the inputs `what`. Inputs are read as needed, a bounded number of texts ahead.
        """
        for batch in self._batches(self._tokenized(what, inputs, prompt)):
            vectors, cu_seqlens = self._vectors(what, batch, num_threads)
            yield np.asarray(_Logits(self.head, False)(vectors, cu_seqlens, num_threads))

    def token_logits(
        self, what: str, sequences: Iterable[list[int]], num_threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the logits [T, L] of the tokens of each sequence, in order."""
        for batch in self._batches(Tokens(ids, []) for ids in sequences):
            vectors, cu_seqlens = self._vectors(what, batch, num_threads)
            yield from _Logits(self.head, True)(vectors, cu_seqlens, num_threads)

    def texts_of(self, what: str, inputs: Iterable[Any], prompt: str) -> list[TokensOfText]:
        """Return the tokens of texts or pairs, whose results are the logits [L]. The arguments are as for `logits`."""
        head = _Logits(self.head, False)
        tokens = self._tokenized(what, inputs, prompt)
        return [TokensOfText(ids, types if self._has_types else [], head) for ids, types in tokens]

    def windows_of(self, sequences: Iterable[list[int]]) -> list[TokensOfText]:
        """Return sequences, whose results are the logits [T, L]."""
        head = _Logits(self.head, True)
        return [TokensOfText(ids, [], head) for ids in sequences]

    def _vectors(
        self, what: str, batch: list[Tokens], num_threads: int | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        tokens, cu_seqlens = packed([text.ids for text in batch])
        types = packed([text.types for text in batch])[0] if self._has_types else np.empty(0, np.int64)
        with in_the_name_of(what):
            # Without pairs every token is of type 0.
            return self.model.hidden_states(tokens, cu_seqlens, num_threads, types if types.any() else None), cu_seqlens

    def _tokenized(self, what: str, inputs: Iterable[Any], prompt: str) -> Iterator[Tokens]:
        given = (text_or_pair(what, text, i) for i, text in enumerate(inputs))
        for slab in slabs(given):
            if prompt:
                slab = [prompt + text if isinstance(text, str) else (prompt + text[0], text[1]) for text in slab]
            with in_the_name_of(what):
                yield from (Tokens(ids, types) for ids, types in self.tokenizer.encode_inputs(slab))

    @staticmethod
    def _batches(texts: Iterable[Tokens]) -> Iterator[list[Tokens]]:
        return batches(texts, lambda text: len(text.ids))


class PretrainedClassifier(PretrainedModel):
    """The base class of the public classifiers: a `Classifier`, and its labels. Subclasses set `_TASK`."""

    _TASK: str  # TEXTS or TOKENS
    _SHOWN = ("num_labels", *PretrainedModel._SHOWN)

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier

    @classmethod
    @renamed_keyword("directory", "model")
    def from_pretrained(
        cls: type[Public], model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> Public:
        """Open a classifier in the files of transformers.

        Its class there is ...ForSequenceClassification for a `TextClassifier`, and ...ForTokenClassification for a
        `TokenClassifier`.

        Parameters
        ----------
        model : path of a directory, or name of a model
            With the files that `SentenceEncoder.from_pretrained` reads. In config.json, ``id2label`` has the labels.
            For labels of texts ``problem_type`` chooses the function from logits to scores. The head is the one of the
            family.
        dtype, weight_dtype
            As for `SentenceEncoder.from_pretrained`; the head is computed in float32.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `SentenceEncoder.from_pretrained`.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            return cls(load_classifier(function, find_directory(model), cls._TASK, dtype, weight_dtype))

    @property
    def _model(self) -> Model:
        return self._classifier.model

    def _reader(self) -> tuple[Any, bool]:
        return self._classifier.tokenizer, self._TASK == TEXTS

    def _with_model(self: Public, model: Model) -> Public:
        return type(self)(self._classifier.with_model(model))

    @property
    def labels(self) -> tuple[str, ...]:
        """The L labels, in the order of ``id2label`` of config.json."""
        return self._classifier.labels.names

    @property
    def num_labels(self) -> int:
        """L, the number of labels."""
        return len(self.labels)

    @property
    def max_length(self) -> int:
        """The largest number of tokens that go through the layers at once for a text, special tokens included."""
        return self._classifier.config.max_seq_length

    max_seq_length = renamed("max_seq_length", "max_length")


def load_classifier(
    function: str,
    home: Path,
    task: str,
    dtype: DTypeLike,
    weight_dtype: WeightDType,
) -> Classifier:
    """Open the classifier in the directory `home` for `task`, `TEXTS` or `TOKENS`.

    Raises the errors of `SentenceEncoder.from_pretrained`.
    """
    require_library()
    kind, stored = checked_dtypes(function, dtype, weight_dtype)
    module = read_transformer(home)
    folder = home if module is None else module.folder
    path = folder / "config.json"
    opened = open_model(FolderSource(folder), EMBEDDING)
    config, front_end = opened.config, opened.config.tokens
    labels = read_labels(path, task)
    is_listed = module is not None
    texts = read_sentence_config(folder, front_end.max_positions or 0, is_listed, front_end.first_position, _ST_TASK)
    parts = head_of(path, opened.family, task, config.embed_dim, len(labels.names))
    needs_first_token = task == TEXTS and parts.pooling == "cls"
    tokenizer = read_tokenizer(folder, config.vocab_size, texts, needs_first_token, cuts=task == TEXTS)
    with opened.tensors(parts.tensor_shapes()) as tensors:
        head = ClassificationHead(parts, tensors)
        model = opened.build(tensors, kind, stored)
    has_types = front_end.token_types > 1 and _gives_types(folder, texts.tokenizer)
    return Classifier(model, head, tokenizer, labels, texts, has_types, folder)


def _gives_types(folder: Path, tokenizer: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer in a folder, with these settings, returns token types; without them they are 0."""
    names = tokenizer.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return class_of_tokenizer(folder, tokenizer) in _CLASSES_WITH_TYPES


def finds_entities(directory: str | PathLike[str]) -> bool:
    """Return whether the model in `directory` is a classifier of tokens; errors as `load_classifier`."""
    home = find_directory(directory)
    module = read_transformer(home)
    values = read_json((home if module is None else module.folder) / "config.json", dict)
    architectures = values.get("architectures")
    return isinstance(architectures, list) and any(str(name).endswith(TOKENS) for name in architectures)
