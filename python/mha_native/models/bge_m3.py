"""Dense, sparse and late-interaction embeddings of texts by one model: BGE-M3."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from ..functions.arrays import widened
from ..functions.maxsim import maxsim
from ..functions.messages import in_the_name_of, listed, name_of_type, shown
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_real
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from ..layers.linear import Linear
from .architecture.family import EMBEDDING
from .architecture.model import Model
from .architecture.open import open_model
from .files.checkpoint import Checkpoint
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.modules_json import read_modules
from .files.safetensors import SafetensorsFile
from .files.sentence_files import SentenceConfig, read_sentence_config
from .heads.embedding import Head, HeadConfig, read_head
from .heads.pooling import Pooling, scaled_to_length_1
from .heads.sparse import SparseEmbeddings
from .text.inputs import checked_texts, text_or_pair
from .text.prompts import Settings, read_settings
from .text.tokenizer import Tokenizer, read_tokenizer, require_library
from .text_encoder import TextEncoder

__all__ = ["BGEM3Encoder"]

# Files of the two heads, each a linear map; FlagEmbedding saves them as pickles of torch.
_SPARSE, _COLBERT = "sparse_linear", "colbert_linear"

_SPECIAL = ("cls_token", "eos_token", "pad_token", "unk_token")  # tokens that have no lexical weight


class BGEM3Encoder(TextEncoder):
    """Three embeddings of a text by one computation: a dense vector, lexical weights, and a vector for each token.

    Use `from_pretrained` to open BAAI/bge-m3 or a model like it.

    Parameters
    ----------
    model, tokenizer, head, heads, config, settings, special
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode : All outputs for texts.
    SentenceEncoder : Opens the same files for dense embeddings alone.

    Notes
    -----
    Results are the ones of BGEM3FlagModel of the package FlagEmbedding, in float32. The result of a text has the same
    bits alone and in any batch. Needs the package tokenizers.

    Examples
    --------
    >>> from mha_native.models import BGEM3Encoder
    >>> model = BGEM3Encoder.from_pretrained("BAAI/bge-m3")
    >>> found = model.encode(["What is BGE M3?", "BM25 ranks documents."], return_sparse=True)
    >>> list(found), len(found["lexical_weights"])
    (['dense_vecs', 'lexical_weights', 'colbert_vecs'], 2)
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        head: Head,
        heads: Mapping[str, Linear],
        config: SentenceConfig,
        settings: Settings,
        special: Sequence[int],
    ) -> None:
        super().__init__(model, tokenizer, config, settings)
        self._head, self._heads = head, dict(heads)
        self._special = np.array(special, np.int64)

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "BGEM3Encoder":
        """Open a model in the files of sentence-transformers, with two further linear maps.

        Parameters
        ----------
        model : path of a directory, or name of a model
            As for `SentenceEncoder.from_pretrained`. The folder also has sparse_linear.safetensors and
            colbert_linear.safetensors, each with ``weight`` and ``bias``. A dense vector is the row of the first token,
            scaled to length 1; modules.json must say so, or be absent.
        dtype, weight_dtype
            As for `SentenceEncoder.from_pretrained`; the heads are computed in float32.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `SentenceEncoder.from_pretrained`; also if a head is a pickle of torch, which is not read.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            home = find_directory(model, files=[f"{name}.safetensors" for name in (_SPARSE, _COLBERT)])
            modules = read_modules(home)
            is_listed = (home / "modules.json").exists()
            folder = modules[0].folder
            opened = open_model(FolderSource(folder), EMBEDDING)
            config, front_end = opened.config, opened.config.tokens
            sentences = read_sentence_config(folder, front_end.max_positions or 0, is_listed, front_end.first_position)
            heads = {name: _read_linear(home, name, config.embed_dim) for name in (_SPARSE, _COLBERT)}
            if heads[_SPARSE].out_features != 1:
                got = heads[_SPARSE].out_features
                raise ValueError(f"{home / _SPARSE}.safetensors must have one number for a token; got {got}")
            head = HeadConfig(Pooling(("cls",)), (), True, config.embed_dim)
            if is_listed and (found := read_head(modules, config.embed_dim)) != head:
                normalize = "" if found.normalize else " without Normalize"
                modes = f"{listed(found.pooling.modes)}{normalize}"
                raise ValueError(f"{home / 'modules.json'} must have Pooling of cls, and Normalize; got {modes}")
            tokenizer = read_tokenizer(folder, config.vocab_size, sentences, needs_first_token=True)
            settings = read_settings(home) if is_listed else Settings()
            special = _special_tokens(folder, tokenizer, sentences.tokenizer)
            return cls(opened.load(kind, stored), tokenizer, Head(head), heads, sentences, settings, special)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        return_dense: bool = True,
        return_sparse: bool = False,
        return_colbert_vecs: bool = False,
        num_threads: int | None = None,
    ) -> dict[str, Any]:
        """Return the chosen outputs for texts.

        Parameters
        ----------
        texts : str, or N of them
            Longer texts are cut to `max_length` tokens.
        return_dense, return_sparse, return_colbert_vecs : bool
            Which outputs to compute.
        num_threads : int, optional
            As for `SentenceEncoder.encode`.

        Returns
        -------
        outputs : dict
            ``dense_vecs``: float32 [N, E], of length 1. ``lexical_weights``: a list of N dicts from tokens, as decimal
            strings, to their weights. ``colbert_vecs``: a list of N arrays float32 [T, D] of length 1, without the
            first token. None for outputs that are not computed; for one str the entries of a list.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text.
        """
        name = f"{type(self).__name__}.encode"
        threads = threads_of_call(name, num_threads)
        return_dense = _core.boolean(name, "return_dense", return_dense)
        return_sparse = _core.boolean(name, "return_sparse", return_sparse)
        return_colbert_vecs = _core.boolean(name, "return_colbert_vecs", return_colbert_vecs)
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        dense, done = np.empty((len(given), self._head.features), np.float32), 0
        weights: list[dict[str, np.float32]] = []
        vectors: list[NDArray[np.float32]] = []
        for tokens, rows, cu_seqlens in self._batches(name, given, threads):
            if return_dense:
                found = self._head.embeddings(rows, cu_seqlens, 0, self._head.features, None, threads)
                dense[done : done + len(found)] = found
                done += len(found)
            if return_sparse:
                lexical = self._lexical(tokens, rows, cu_seqlens, threads)
                for i in range(lexical.num_texts):
                    indices, values = lexical.row(i)
                    weights.append(dict(zip(map(str, indices.tolist()), values, strict=True)))
            if return_colbert_vecs:
                rows_of_tokens = scaled_to_length_1(self._heads[_COLBERT](rows, num_threads=threads), threads)
                vectors += [rows_of_tokens[first + 1 : end].copy() for first, end in pairwise(cu_seqlens)]
        outputs: dict[str, Any] = {
            "dense_vecs": dense if return_dense else None,
            "lexical_weights": weights if return_sparse else None,
            "colbert_vecs": vectors if return_colbert_vecs else None,
        }
        if isinstance(texts, str):
            return {name: None if found is None else found[0] for name, found in outputs.items()}
        return outputs

    def encode_sparse(self, texts: str | Iterable[str], *, num_threads: int | None = None) -> SparseEmbeddings:
        """Return the lexical weights of texts as sparse vectors over the vocabulary.

        Parameters
        ----------
        texts, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : SparseEmbeddings
            Of N texts; for one str N is 1.
        """
        name = f"{type(self).__name__}.encode_sparse"
        threads = threads_of_call(name, num_threads)
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        parts = (self._lexical(*batch, threads) for batch in self._batches(name, given, threads))
        return SparseEmbeddings.concatenated(parts, self.vocab_size)

    @staticmethod
    def compute_lexical_matching_score(
        lexical_weights_1: Mapping[str, float] | Sequence[Mapping[str, float]],
        lexical_weights_2: Mapping[str, float] | Sequence[Mapping[str, float]],
    ) -> Any:
        """Return the sum of the products of the weights of tokens that both texts have.

        Parameters
        ----------
        lexical_weights_1 : dict, or N of them
            As `encode` returns them.
        lexical_weights_2 : dict, or M of them

        Returns
        -------
        scores : float, or float64 [N, M] for two lists
        """
        name = "BGEM3Encoder.compute_lexical_matching_score"
        first, second = lexical_weights_1, lexical_weights_2
        if isinstance(first, Mapping) != isinstance(second, Mapping):
            got = f"{name_of_type(first)} and {name_of_type(second)}"
            raise TypeError(f"{name}: lexical_weights_1 and lexical_weights_2 must both be dicts or lists; got {got}")
        given = {"lexical_weights_1": first, "lexical_weights_2": second}
        rows, columns = (_checked_weights(name, which, weights) for which, weights in given.items())
        scores = [[_product(one, other) for other in columns] for one in rows]
        return scores[0][0] if isinstance(first, Mapping) else np.array(scores, np.float64)

    @staticmethod
    def colbert_score(query: NDArray[np.float32], document: NDArray[np.float32]) -> float:
        """Return the late-interaction score of two texts: the mean over tokens of the query of their best product.

        Parameters
        ----------
        query : float32 [Tq, D]
            As `encode` returns it in ``colbert_vecs``.
        document : float32 [Tk, D]

        Notes
        -----
        The sum of `mha_native.maxsim`, divided by Tq; 0 without tokens.
        """
        return _colbert_score("BGEM3Encoder.colbert_score", query, document, None)

    def compute_score(
        self,
        sentence_pairs: Sequence[tuple[str, str]],
        *,
        weights_for_different_modes: Sequence[float] = (1.0, 1.0, 1.0),
        num_threads: int | None = None,
    ) -> dict[str, list[float]]:
        """Return the scores of pairs of texts by each output, and by weighted sums of them.

        Parameters
        ----------
        sentence_pairs : N pairs
            A query and a document each.
        weights_for_different_modes : 3 numbers
            For dense, sparse and late-interaction scores.
        num_threads : int, optional
            As for `encode`.

        Returns
        -------
        scores : dict of lists of N
            ``colbert``, ``sparse``, ``dense``, ``sparse+dense`` and ``colbert+sparse+dense``. Sums are divided by the
            sum of their weights.
        """
        name = f"{type(self).__name__}.compute_score"
        given = weights_for_different_modes
        if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != 3:
            raise ValueError(f"{name}: weights_for_different_modes must be 3 numbers; got {shown(given)}")
        weights = np.array([checked_real(name, "weights_for_different_modes", weight) for weight in given])
        if 0 in (weights[:2].sum(), weights.sum()):
            got = f"got {weights.tolist()}"
            raise ValueError(f"{name}: weights_for_different_modes must be 3 numbers whose sums are not 0; {got}")
        options: Any = {"return_sparse": True, "return_colbert_vecs": True, "num_threads": num_threads}
        if isinstance(sentence_pairs, (str, Mapping)) or not isinstance(sentence_pairs, Iterable):
            raise TypeError(f"{name}: sentence_pairs must be pairs of texts; got {shown(sentence_pairs)}")
        pairs = [text_or_pair(f"{name}: sentence_pairs", pair, i) for i, pair in enumerate(sentence_pairs)]
        if (i := next((i for i, pair in enumerate(pairs) if isinstance(pair, str)), None)) is not None:
            raise ValueError(f"{name}: sentence_pairs must be pairs of texts; got one text at {i}")
        with in_the_name_of(name, texts="sentence_pairs"):
            queries, documents = (self.encode([pair[i] for pair in pairs], **options) for i in (0, 1))
        dense = (queries["dense_vecs"] * documents["dense_vecs"]).sum(axis=1).astype(np.float64)
        weighted = zip(queries["lexical_weights"], documents["lexical_weights"], strict=True)
        sparse = np.array([_product(one, other) for one, other in weighted], np.float64)
        vectors = zip(queries["colbert_vecs"], documents["colbert_vecs"], strict=True)
        colbert = np.array([_colbert_score(name, *pair, num_threads) for pair in vectors], np.float64)
        both = weights[0] * dense + weights[1] * sparse
        scores = {
            "colbert": colbert,
            "sparse": sparse,
            "dense": dense,
            "sparse+dense": both / weights[:2].sum(),
            "colbert+sparse+dense": (both + weights[2] * colbert) / weights.sum(),
        }
        return {mode: found.tolist() for mode, found in scores.items()}

    def _batches(self, name: str, texts: list[str], num_threads: int | None) -> Iterable[tuple[Any, Any, Any]]:
        tokens = self._tokenize(name, texts, self._settings.prompts.chosen(name, None, None))
        for ids, rows, cu_seqlens in self._model.batches(f"{name}: texts", tokens, num_threads):
            yield ids, widened(rows).astype(np.float32, copy=False), cu_seqlens

    def _lexical(
        self,
        tokens: NDArray[np.int64],
        rows: NDArray[np.float32],
        cu_seqlens: NDArray[np.int64],
        num_threads: int | None,
    ) -> SparseEmbeddings:
        """Return the largest positive weight of each token in each text, without special tokens."""
        weights = self._heads[_SPARSE](rows, num_threads=num_threads)[:, 0]
        kept = (weights > 0) & ~np.isin(tokens, self._special)
        places = np.repeat(np.arange(len(cu_seqlens) - 1), np.diff(cu_seqlens)) * self.vocab_size + tokens
        found, inverse = np.unique(places[kept], return_inverse=True)
        values = np.zeros(len(found), np.float32)
        np.maximum.at(values, inverse, weights[kept])
        texts, indices = np.divmod(found, self.vocab_size)
        counts = np.bincount(texts, minlength=len(cu_seqlens) - 1)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return SparseEmbeddings(offsets, indices.astype(np.int32), values, self.vocab_size)


def _colbert_score(function: str, query: Any, document: Any, num_threads: int | None) -> float:
    for name, given in (("query", query), ("document", document)):
        if not isinstance(given, np.ndarray) or given.ndim != 2 or given.dtype.kind != "f":
            raise TypeError(f"{function}: {name} must be an array of floats [T, D]; got {shown(given)}")
    with in_the_name_of(function, queries="query", documents="document"):
        scores = maxsim(query, document, num_threads=num_threads)
    return float(scores[0, 0]) / len(query) if len(query) and len(document) else 0.0


def _checked_weights(function: str, name: str, given: Any) -> list[Mapping[str, float]]:
    """Return dicts of weights, a list of one for a single dict. TypeError for anything else."""
    found: list[Any] = [given] if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable) else list(given)
    for each in found:
        if not isinstance(each, Mapping) or not all(isinstance(weight, Real) for weight in each.values()):
            raise TypeError(f"{function}: {name} must be dicts of numbers, as encode returns them; got {shown(each)}")
    return found


def _product(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    return float(sum(weight * second[token] for token, weight in first.items() if token in second))


def _special_tokens(folder: Path, tokenizer: Tokenizer, values: Mapping[str, Any]) -> list[int]:
    """Return the special tokens that tokenizer_config.json, with these `values`, names; no separators and masks.

    ValueError if it does not name one that every tokenizer of its class has, by a default that is not read here.
    """
    has_end = str(values.get("tokenizer_class")).startswith("XLMRoberta")
    missing = [name for name in _SPECIAL if values.get(name) is None and (has_end or name != "eos_token")]
    if missing:
        path = folder / "tokenizer_config.json"
        raise ValueError(f"{path} must name {listed(missing)}, since special tokens have no lexical weight")
    named = (values.get(name) for name in _SPECIAL)
    words = (word.get("content") if isinstance(word, Mapping) else word for word in named)
    found = (tokenizer.library.token_to_id(word) for word in words if isinstance(word, str))
    return sorted({token for token in found if token is not None})


def _read_linear(home: Path, name: str, embed_dim: int) -> Linear:
    """Return the linear map in the file `name`.safetensors of a folder, in float32."""
    path = home / f"{name}.safetensors"
    if not path.exists():
        pickle = home / f"{name}.pt"
        why = f"{pickle.name} is a pickle, which is not read" if pickle.exists() else "it is a head of BGE-M3"
        call = f"s.save_file(torch.load('{name}.pt', weights_only=True), '{name}.safetensors')"
        raise FileNotFoundError(
            f'{path} does not exist; {why}; in the folder of {name}.pt run: python -c "import torch, '
            f'safetensors.torch as s; {call}"'
        )
    with SafetensorsFile(path) as file:
        shape = file.entries["weight"].shape if "weight" in file.entries else ()
    features = shape[0] if len(shape) == 2 and shape[0] > 0 else 1
    shapes = {"weight": (features, embed_dim), "bias": (features,)}
    with Checkpoint(home, shapes.items(), open_file=lambda _: SafetensorsFile(path)) as tensors:
        return Linear.from_weights(tensors["weight"], tensors["bias"])
