"""Late interaction: texts as vectors of their tokens, compared token by token (ColBERT)."""

from collections.abc import Iterable, Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of, name_of_type, shown
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_boolean
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from .architecture.family import EMBEDDING
from .architecture.model import Model
from .architecture.open import open_model
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.late_interaction import Expansion, LateInteractionFiles, Skipped, read_late_interaction
from .files.sentence_files import SentenceConfig, read_sentence_config
from .heads.token_vectors import TokenEmbeddings, TokenHead, inline_shapes, load_token_head, read_token_steps
from .text.batching import batches, packed
from .text.inputs import checked_texts
from .text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, Settings, read_settings
from .text.tokenizer import Tokenizer, read_tokenizer, require_library
from .text_encoder import TextEncoder

__all__ = ["MultiVectorEncoder", "TokenEmbeddings"]

_READ_HERE = ("query_length", "document_length", "query_expansion")


class _Side(NamedTuple):
    """How the texts of a role become tokens with vectors."""

    prompt_names: tuple[str, ...]  # the first one that the model has counts
    tokenizer: Tokenizer
    marker: int | None  # the token after the first one
    prefix: str  # the text of the marker, with which a prompt may begin; "" without a marker
    filler: tuple[int, int, bool] | None  # a token to fill texts up with, to a length; whether tokens attend to it
    skipped: frozenset[int]
    kept: frozenset[int]  # no others have vectors; empty: all


class _Tokens(NamedTuple):
    """The tokens of a text."""

    ids: list[int]
    seen: int  # the first ones, which tokens attend to
    scored: list[bool]  # whether a token has a vector in the result


class MultiVectorEncoder(TextEncoder):
    """Vectors of the tokens of texts, by which a query is compared with a document token by token (ColBERT).

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, head, config, settings, query, document
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    rank : Order documents by their scores for a query.
    mha_native.maxsim : Scores of vectors.

    Notes
    -----
    Before a text and its prompt stands a marker of its role; a prompt that begins with the marker adds no second one.
    Short queries are filled up with mask tokens if the model says so: each has a vector, and by default no token
    attends to it. Vectors of punctuation in documents are left out. The vectors of a text have the same bits alone and
    in any batch.

    Needs the package tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> from mha_native.models import MultiVectorEncoder
    >>> model = MultiVectorEncoder.from_pretrained("lightonai/GTE-ModernColBERT-v1")
    >>> documents = ["Children swim for free.", "Bulky waste is collected on the first Monday of the month."]
    >>> ranking = model.rank("Where do I get rid of an old couch?", documents)
    >>> sorted(entry["corpus_id"] for entry in ranking)
    [0, 1]
    """

    def __init__(
        self,
        model: Model,
        head: TokenHead,
        config: SentenceConfig,
        settings: Settings,
        query: _Side,
        document: _Side,
    ) -> None:
        super().__init__(model, document.tokenizer, config, settings)
        self._head, self._query, self._document = head, query, document

    @property
    def embed_dim(self) -> int:
        """D, the features of a vector."""
        return self._head.features

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a document, special tokens included; longer texts are cut. Can be set up to
        the number of positions."""
        return self._config.max_seq_length

    @max_length.setter
    def max_length(self, max_length: int) -> None:
        name = type(self).__name__
        length = self._model.config.checked_length(name, max_length)
        with in_the_name_of(name, max_seq_length="max_length"):
            self._tokenizer = self._document.tokenizer.cut_at(length - (self._document.marker is not None))
        self._document = self._document._replace(tokenizer=self._tokenizer)
        self._config = self._config._replace(max_seq_length=length)

    @property
    def similarity_fn_name(self) -> str:
        """How scores are made: "maxsim", or "meanmaxsim", which is maxsim over the number of vectors of the query."""
        return self._settings.similarity

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "MultiVectorEncoder":
        """Open a model in the files of sentence-transformers, of PyLate or of ColBERT.

        Parameters
        ----------
        model : path of a directory, or name of a model
            As for `SentenceEncoder.from_pretrained`, with any of its model types that have layers. modules.json lists a
            Transformer, and then any of Dense, MultiVectorMask and Normalize: sentence-transformers 6; a Transformer
            and Dense with ``query_prefix`` to ``skiplist_words`` in config_sentence_transformers.json: PyLate. Without
            modules.json, the class HF_ColBERT in config.json, and artifact.metadata: ColBERT.
        dtype, weight_dtype
            As for `SentenceEncoder.from_pretrained`; the steps after the transformer are computed in float32.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `SentenceEncoder.from_pretrained`.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            home = find_directory(model)
            files = read_late_interaction(home)
            settings = read_late_settings(home, files)
            opened = open_model(FolderSource(files.transformer), EMBEDDING)
            front_end = opened.config.stacks[0].front_end
            limits = front_end.max_positions or 0, files.is_listed, front_end.first_position
            sentences = read_sentence_config(files.transformer, *limits, read_elsewhere=_READ_HERE)
            query, document, length = _read_sides(files, opened.config.vocab_size, sentences, limits[0])
            width = opened.config.embed_dim
            steps = read_token_steps(files.steps, width, files.normalize)
            inline = inline_shapes(files.inline_features, width)
            with opened.tensors(inline) as tensors:
                head = load_token_head(steps, width, [tensors[name] for name, _ in inline])
                computation = opened.build(tensors, kind, stored)
            config = sentences._replace(max_seq_length=length)
            return cls(computation, head, config, settings, query, document)

    def encode_query(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        num_threads: int | None = None,
    ) -> TokenEmbeddings:
        """Return the vectors of the tokens of queries.

        Parameters
        ----------
        texts : str, or N of them
            Texts may be empty. Longer texts are cut.
        prompt_name, prompt : str, optional
            As for `SentenceEncoder.encode`. Default: the prompt "query".
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own threads.

        Returns
        -------
        embeddings : TokenEmbeddings
            Of N texts; for one str N is 1.

        Raises
        ------
        TypeError, ValueError
            As for `SentenceEncoder.encode`.
        """
        name = f"{type(self).__name__}.encode_query"
        return self._encode(name, self._query, texts, prompt_name, prompt, num_threads)

    def encode_document(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        num_threads: int | None = None,
    ) -> TokenEmbeddings:
        """Return the vectors of the tokens of documents.

        Parameters
        ----------
        texts, num_threads
            As for `encode_query`.
        prompt_name, prompt : str, optional
            As for `encode_query`. Default: the prompt "document", "passage" or "corpus".

        Returns
        -------
        embeddings : TokenEmbeddings
            Of N texts; for one str N is 1.

        Raises
        ------
        TypeError, ValueError
            As for `SentenceEncoder.encode`.
        """
        name = f"{type(self).__name__}.encode_document"
        return self._encode(name, self._document, texts, prompt_name, prompt, num_threads)

    def scores(
        self, queries: TokenEmbeddings, documents: TokenEmbeddings, *, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the scores [N, M] of N queries and M documents, by the function of the model.

        Parameters
        ----------
        queries, documents : TokenEmbeddings
            From `encode_query` and `encode_document`; documents may be in int8.
        num_threads : int, optional
            As for `encode_query`.

        Returns
        -------
        scores : float32 [N, M]

        Raises
        ------
        TypeError, ValueError
            If an argument is not TokenEmbeddings, or has other features than the other one.
        """
        name = f"{type(self).__name__}.scores"
        if not isinstance(queries, TokenEmbeddings):
            raise TypeError(f"{name}: queries must be TokenEmbeddings; got {name_of_type(queries)}")
        return self._scores(name, queries, documents, threads_of_call(name, num_threads))

    def _scores(
        self, name: str, queries: TokenEmbeddings, documents: TokenEmbeddings, num_threads: int
    ) -> NDArray[np.float32]:
        with in_the_name_of(name):
            found = queries.scores(documents, num_threads=num_threads)
        if self.similarity_fn_name == "meanmaxsim":
            found /= np.maximum(np.diff(queries.cu_seqlens), 1)[:, None].astype(np.float32)
        return found

    def rank(
        self,
        query: str,
        documents: Iterable[str] | TokenEmbeddings,
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        num_threads: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return documents with their scores for a query, the best first; of equal scores the first document.

        Parameters
        ----------
        query : str
        documents : N str, or TokenEmbeddings of N texts
            Texts, or their vectors from `encode_document`.
        top_k : int, optional
            Documents to return. Default: all.
        return_documents : bool, default False
            Return the texts, too.
        num_threads : int, optional
            As for `encode_query`.

        Returns
        -------
        ranking : list of dict
            ``corpus_id``, the index of the document, ``score``, and with `return_documents` ``text``.

        Raises
        ------
        TypeError, ValueError
            As for `encode_query` and `scores`, or if `return_documents` is set and `documents` are vectors.
        """
        name = f"{type(self).__name__}.rank"
        if not isinstance(query, str):
            raise TypeError(f"{name}: query must be a str; got {shown(query)}")
        most = None if top_k is None else checked_size(name, "top_k", top_k)
        checked_boolean(name, "return_documents", return_documents)
        threads = threads_of_call(name, num_threads)
        texts: list[str] | None = None
        if not isinstance(documents, TokenEmbeddings):
            texts = list(checked_texts(name, documents))
            documents = self._encode(name, self._document, texts, num_threads=threads)
        elif return_documents:
            raise ValueError(f"{name}: return_documents needs texts as documents, not TokenEmbeddings")
        queries = self._encode(name, self._query, query, num_threads=threads)
        scores = self._scores(name, queries, documents, threads)[0]
        found = []
        for i in np.argsort(-scores, kind="stable")[:most].tolist():
            entry: dict[str, Any] = {"corpus_id": i, "score": float(scores[i])}
            if return_documents and texts is not None:
                entry["text"] = texts[i]
            found.append(entry)
        return found

    def _encode(
        self,
        name: str,
        side: _Side,
        texts: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        num_threads: int | None = None,
    ) -> TokenEmbeddings:
        threads = threads_of_call(name, num_threads)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        before = self._settings.prompts.chosen(name, prompt_name, prompt, side.prompt_names).removeprefix(side.prefix)
        parts = list(self._vectors(name, side, given, before, threads))
        counts = np.concatenate([np.zeros(1, np.int64), *(counts for _, counts in parts)])
        rows = np.concatenate([np.empty((0, self.embed_dim), np.float32), *(rows for rows, _ in parts)])
        return TokenEmbeddings(rows, np.cumsum(counts))

    def _vectors(
        self, name: str, side: _Side, texts: Iterable[str], prompt: str, num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield the vectors of some texts, and how many each has."""
        tokens = (_tokens(ids, side) for ids in self._tokenized(name, side, texts, prompt))
        for batch in batches(tokens, lambda text: len(text.ids)):
            ids, cu_seqlens = packed([text.ids for text in batch])
            scored = np.array(list(chain.from_iterable(text.scored for text in batch)), np.bool_)
            with in_the_name_of(f"{name}: texts"):
                rows = self._rows(batch, ids, cu_seqlens, num_threads)
            counts = np.add.reduceat(np.append(scored, False), cu_seqlens[:-1], dtype=np.int64)
            counts[np.diff(cu_seqlens) == 0] = 0
            yield self._head(rows[scored], num_threads), counts

    def _rows(
        self, batch: list[_Tokens], ids: NDArray[np.int64], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[Any]:
        """Return the rows of the last layer, of tokens that attend to the ones that are seen."""
        if all(text.seen == len(text.ids) for text in batch):
            rows: NDArray[Any] = self._model.hidden_states(ids, cu_seqlens, num_threads)
            return rows
        seen = np.concatenate([np.arange(len(text.ids)) < text.seen for text in batch])
        stack = self._model.stacks[0]
        x = stack.front_end(ids, cu_seqlens, num_threads)
        found: NDArray[Any] = stack.run(x, cu_seqlens=cu_seqlens, key_mask=seen, num_threads=num_threads)
        return found

    def _tokenized(self, name: str, side: _Side, texts: Iterable[str], prompt: str) -> Iterator[list[int]]:
        """Yield the tokens of each text, after the prompt."""
        other = TextEncoder(self._model, side.tokenizer, self._config, self._settings)
        return other._tokenize(name, texts, prompt)


def _tokens(ids: list[int], side: _Side) -> _Tokens:
    """Return the tokens of a text as the model reads them."""
    if side.marker is not None:
        ids = [*ids[:1], side.marker, *ids[1:]]
    seen = len(ids)
    added = 0
    if side.filler is not None:
        filler, length, attends = side.filler
        added = max(length - seen, 0)
        ids = ids + [filler] * added
        seen += added * attends
    kept = [token not in side.skipped and (not side.kept or token in side.kept) for token in ids]
    return _Tokens(ids, seen, kept)


def read_late_settings(home: Path, files: LateInteractionFiles) -> Settings:
    """Read the prompts and the similarity of a multi-vector encoder, by the errors of `read_settings`."""
    if not files.is_listed:
        return Settings(similarity="maxsim")
    return read_settings(home, "ColBERT" if files.normalize else "MultiVectorEncoder")


def _read_sides(
    files: LateInteractionFiles, vocab_size: int, sentences: SentenceConfig, positions: int
) -> tuple[_Side, _Side, int]:
    """Return how queries and documents are read, and the largest number of tokens of a document."""
    limits = [sentences.max_seq_length, sentences.max_seq_length]
    for i, (name, length) in enumerate((("query", files.query_length), ("document", files.document_length))):
        limits[i] = length or limits[i]
        if limits[i] > positions:
            place = f"{files.transformer}: {name}_length"
            raise ValueError(f"{place} must be at most max_position_embeddings, {positions}; got {limits[i]}")
    if files.expansion is not None:
        longest = files.expansion.length
        if longest > positions:
            place = f"{files.transformer}: length of query_expansion"
            raise ValueError(f"{place} must be at most max_position_embeddings, {positions}; got {longest}")
        if files.query_length is not None and files.query_length < longest:
            place = f"{files.transformer}: query_length"
            raise ValueError(
                f"{place} must be at least the length of query_expansion, {longest}; got {files.query_length}"
            )
        limits[0] = longest if files.expansion.cuts else max(limits[0], longest)
    markers = [None if marker is None else 1 for marker in files.markers]
    tokenizers = [
        read_tokenizer(
            files.transformer,
            vocab_size,
            sentences._replace(max_seq_length=limit - (marker or 0)),
            needs_first_token=marker is not None,
        )
        for limit, marker in zip(limits, markers, strict=True)
    ]
    library = tokenizers[0].library
    ids = [None if marker is None else _id_of(files, library, "prefix", marker) for marker in files.markers]
    skipped = _skipped_ids(files.skipped, library)
    kept = frozenset(files.skipped.kept_ids)
    filler = None if files.expansion is None else _filler(files, files.expansion, library, sentences)
    nothing: frozenset[int] = frozenset()
    of_queries = skipped if files.skipped.of_queries else nothing
    of_documents = skipped if files.skipped.of_documents else nothing
    prefixes = [marker or "" for marker in files.markers]
    query = _Side(QUERY_PROMPTS, tokenizers[0], ids[0], prefixes[0], filler, of_queries, nothing)
    document = _Side(DOCUMENT_PROMPTS, tokenizers[1], ids[1], prefixes[1], None, of_documents, kept)
    return query, document, limits[1]


def _id_of(files: LateInteractionFiles, library: Any, what: str, token: str) -> int:
    number = library.token_to_id(token)
    if number is None:
        raise ValueError(f"{files.transformer / 'tokenizer.json'} must have the {what} {shown(token)}")
    return int(number)


def _skipped_ids(skipped: Skipped, library: Any) -> frozenset[int]:
    """Return the numbers of the words that are tokens; others are left aside, as in sentence-transformers."""
    found = (library.token_to_id(word) for word in skipped.words)
    return frozenset(number for number in found if number is not None)


def _filler(
    files: LateInteractionFiles, expansion: Expansion, library: Any, sentences: SentenceConfig
) -> tuple[int, int, bool]:
    """Return the token that queries are filled up with: one that is given, the mask token, or the one at the end."""
    token = expansion.token
    if token is None:
        for name in ("mask_token", "eos_token"):
            given = sentences.tokenizer.get(name)
            token = given.get("content") if isinstance(given, dict) else given
            if token is not None:
                break
    if not isinstance(token, str):
        path = files.transformer / "tokenizer_config.json"
        raise ValueError(f"{path} must have a mask_token or eos_token, to fill up queries; got {shown(token)}")
    return _id_of(files, library, "token of query expansion", token), expansion.length, expansion.attends
