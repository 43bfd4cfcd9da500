"""Haystack: components that embed queries and documents, and a component that ranks documents."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..functions.messages import in_the_name_of, shown
from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs
from ._shared_model import SharedModel
from ._sparse_embedder import SparseEmbedder, SparseOptions, rows_of
from ._text_embedder import EmbedderOptions, FormatOptions, TextEmbedder
from ._text_ranker import TextRanker

with needed_package(__name__, "haystack-ai", "haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.dataclasses import SparseEmbedding

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on

__all__ = [
    "MhaNativeDocumentEmbedder",
    "MhaNativeDocumentImageEmbedder",
    "MhaNativeRanker",
    "MhaNativeSparseDocumentEmbedder",
    "MhaNativeSparseTextEmbedder",
    "MhaNativeTextEmbedder",
]

# Arguments that make texts of documents.
_TEXT_ARGUMENTS = ("meta_fields_to_embed", "embedding_separator")

# Arguments that find the image of a document.
_IMAGE_ARGUMENTS = ("file_path_meta_field", "root_path")


class _Component:
    """A component with a model, which is read on first use, and a description."""

    def _take(self, kind: type[SharedModel], given: Mapping[str, Any], **names: str) -> Any:
        """Return the model that the arguments of a constructor describe; `names` has the names of the model for some.

        Not an __init__: Haystack makes another class of each component, in which ``super()`` does not work.
        """
        arguments = {name: x for name, x in given.items() if name not in ("self", "options")} | given["options"]
        self._arguments, self._names = arguments, {"model": "model_name", **names}
        if "meta_fields_to_embed" in arguments:
            self._set_texts(**{name: arguments[name] for name in _TEXT_ARGUMENTS})
        own = (*_TEXT_ARGUMENTS, *_IMAGE_ARGUMENTS)
        settings = {self._names.get(name, name): x for name, x in arguments.items() if name not in own}
        with self._in_own_name():
            self._shared = kind(type(self).__name__, **settings)
        return self._shared

    def _set_texts(self, meta_fields_to_embed: object, embedding_separator: object) -> None:
        owner, fields = type(self).__name__, meta_fields_to_embed
        if fields is not None and not (isinstance(fields, list) and all(isinstance(field, str) for field in fields)):
            raise TypeError(f"{owner}: meta_fields_to_embed must be a list of str; got {shown(fields)}")
        if not isinstance(embedding_separator, str):
            raise TypeError(f"{owner}: embedding_separator must be a str; got {shown(embedding_separator)}")
        self._fields, self._separator = list(fields or ()), embedding_separator

    def _texts(self, documents: list[Document]) -> list[str]:
        """Return the text of each document: fields of its metadata, and its content."""
        self._check(documents)
        texts = [[*map(document.meta.get, self._fields), document.content or ""] for document in documents]
        return [self._separator.join(str(part) for part in parts if part is not None) for parts in texts]

    def _check(self, documents: object) -> None:
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise TypeError(f"{type(self).__name__}.run: documents must be a list of Document; got {shown(documents)}")

    def warm_up(self) -> None:
        """Read the model."""
        with self._in_own_name():
            self._shared.load()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack writes it into the file of a pipeline."""
        return default_to_dict(self, **self._arguments)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Self":
        """Return the component that `to_dict` described."""
        return default_from_dict(cls, data)

    def _in_own_name(self) -> in_the_name_of:
        return in_the_name_of(type(self).__name__, **{name: own for own, name in self._names.items()})


@component
@with_argument_docs
class MhaNativeTextEmbedder(_Component):
    """A component of Haystack that embeds a query by a model of sentence-transformers.

    Parameters
    ----------
    model : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SentenceTransformer`.
    prompt : str, optional
        Text before a query. Default: the prompt of the model for queries, if it has one.
    {kwargs}
    {embedder}

    {invalid}

    Notes
    -----
    `warm_up`, which a pipeline calls, or the first `run` reads the model. Components with equal descriptions in one
    process share a model.

    Examples
    --------
    >>> from mha_native.interop.haystack import MhaNativeTextEmbedder
    >>> embedder = MhaNativeTextEmbedder("all-MiniLM-L6-v2")
    >>> len(embedder.run("A dog was hungry.")["embedding"])
    384
    """

    def __init__(
        self,
        model: str,
        prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[EmbedderOptions]",
    ) -> None:
        self._embedder = self._take(TextEmbedder, locals(), prompt="query_prompt")

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Return ``{"embedding": E numbers}`` for a query."""
        return {"embedding": self._embedder.queries("run", [text])[0]}


@component
@with_argument_docs
class MhaNativeDocumentEmbedder(_Component):
    """A component of Haystack that embeds documents by a model of sentence-transformers.

    Parameters
    ----------
    model : str
        As for `MhaNativeTextEmbedder`.
    prompt : str, optional
        Text before a document. Default: the prompt of the model for documents, if it has one.
    meta_fields_to_embed : list of str, optional
        Fields of the metadata to put before the content of a document. Missing fields are skipped.
    embedding_separator : str
        Text between these fields and the content.
    {kwargs}
    {embedder}

    {invalid}

    Examples
    --------
    >>> from haystack import Document
    >>> from mha_native.interop.haystack import MhaNativeDocumentEmbedder
    >>> embedder = MhaNativeDocumentEmbedder("all-MiniLM-L6-v2", meta_fields_to_embed=["title"])
    >>> documents = [Document(content="The puppy wanted food.", meta={"title": "Dogs"})]
    >>> [len(document.embedding) for document in embedder.run(documents)["documents"]]
    [384]
    """

    def __init__(
        self,
        model: str,
        prompt: str | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[EmbedderOptions]",
    ) -> None:
        self._embedder = self._take(TextEmbedder, locals(), prompt="document_prompt")

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return ``{"documents": N copies, each with its embedding}`` for N documents."""
        embeddings = self._embedder.documents("run", self._texts(documents))
        pairs = zip(documents, embeddings, strict=True)
        return {"documents": [replace(document, embedding=embedding) for document, embedding in pairs]}


@component
@with_argument_docs
class MhaNativeDocumentImageEmbedder(_Component):
    """A component of Haystack that embeds the images of documents by a model of images, such as CLIP.

    Parameters
    ----------
    model : str
        As for `MhaNativeTextEmbedder`, which embeds queries by the same model.
    file_path_meta_field : str
        The field of the metadata with the path of the image.
    root_path : str, optional
        The folder of paths that are relative. Default: the working directory.
    {kwargs}
    {embedder}

    {invalid}

    Examples
    --------
    >>> from haystack import Document
    >>> from mha_native.interop.haystack import MhaNativeDocumentImageEmbedder
    >>> embedder = MhaNativeDocumentImageEmbedder("clip-ViT-B-32")
    >>> embedder.run([Document(meta={"file_path": "couch.jpg"})])["documents"]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str,
        file_path_meta_field: str = "file_path",
        root_path: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[EmbedderOptions]",
    ) -> None:
        self._embedder = self._take(TextEmbedder, locals())
        for name in _IMAGE_ARGUMENTS:
            if not (isinstance(path := self._arguments[name], str) or (path is None and name == "root_path")):
                raise TypeError(f"{type(self).__name__}: {name} must be a str; got {shown(path)}")
        self._field, self._root = file_path_meta_field, Path(root_path or "")

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return ``{"documents": N copies, each with the embedding of its image}`` for N documents."""
        self._check(documents)
        for place, document in enumerate(documents):
            if not isinstance(document.meta.get(self._field), str):
                raise ValueError(
                    f"{type(self).__name__}.run: documents must have the path of an image in the field {self._field} "
                    f"of their metadata; got {shown(document.meta.get(self._field))} at {place}"
                )
        paths = [self._root / document.meta[self._field] for document in documents]
        pairs = zip(documents, self._embedder.images("run", paths), strict=True)
        return {"documents": [replace(document, embedding=embedding) for document, embedding in pairs]}


@component
@with_argument_docs
class MhaNativeSparseTextEmbedder(_Component):
    """A component of Haystack that embeds a query by a model of sparse embeddings, such as SPLADE.

    Parameters
    ----------
    model : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SparseEncoder`.
    prompt : str, optional
        Text before a query. Default: the prompt of the model for queries, if it has one.
    {sparse_kwargs}
    {sparse}

    {invalid}

    Examples
    --------
    >>> from mha_native.interop.haystack import MhaNativeSparseTextEmbedder
    >>> embedder = MhaNativeSparseTextEmbedder("naver/splade-v3", max_active_dims=32)
    >>> len(embedder.run("A dog was hungry.")["sparse_embedding"].indices) <= 32
    True
    """

    def __init__(
        self,
        model: str,
        prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[SparseOptions]",
    ) -> None:
        self._embedder = self._take(SparseEmbedder, locals(), prompt="query_prompt")

    @component.output_types(sparse_embedding=SparseEmbedding)
    def run(self, text: str) -> dict[str, SparseEmbedding]:
        """Return ``{"sparse_embedding": its indices and values}`` for a query."""
        (row,) = rows_of(self._embedder.queries("run", [text]))
        return {"sparse_embedding": SparseEmbedding(*row)}


@component
@with_argument_docs
class MhaNativeSparseDocumentEmbedder(_Component):
    """A component of Haystack that embeds documents by a model of sparse embeddings, such as SPLADE.

    Parameters
    ----------
    model : str
        As for `MhaNativeSparseTextEmbedder`.
    prompt : str, optional
        Text before a document. Default: the prompt of the model for documents, if it has one.
    meta_fields_to_embed, embedding_separator
        As for `MhaNativeDocumentEmbedder`.
    {sparse_kwargs}
    {sparse}

    {invalid}

    Examples
    --------
    >>> from haystack import Document
    >>> from mha_native.interop.haystack import MhaNativeSparseDocumentEmbedder
    >>> embedder = MhaNativeSparseDocumentEmbedder("naver/splade-v3", max_active_dims=32)
    >>> (document,) = embedder.run([Document(content="The puppy wanted food.")])["documents"]
    >>> len(document.sparse_embedding.indices) <= 32
    True
    """

    def __init__(
        self,
        model: str,
        prompt: str | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        model_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[SparseOptions]",
    ) -> None:
        self._embedder = self._take(SparseEmbedder, locals(), prompt="document_prompt")

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return ``{"documents": N copies, each with its sparse embedding}`` for N documents."""
        rows = rows_of(self._embedder.documents("run", self._texts(documents)))
        pairs = zip(documents, rows, strict=True)
        return {"documents": [replace(document, sparse_embedding=SparseEmbedding(*row)) for document, row in pairs]}


@component
@with_argument_docs
class MhaNativeRanker(_Component):
    """A component of Haystack that puts documents in the order in which they fit a query, by a cross encoder.

    Parameters
    ----------
    model : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.CrossEncoder`.
    top_k : int, optional
        Keep this many documents. Default: all.
    meta_fields_to_embed, embedding_separator
        As for `MhaNativeDocumentEmbedder`.
    {ranker}

    {invalid}

    Examples
    --------
    >>> from haystack import Document
    >>> from mha_native.interop.haystack import MhaNativeRanker
    >>> ranker = MhaNativeRanker("cross-encoder/ms-marco-MiniLM-L6-v2", top_k=1)
    >>> documents = [Document(content="Children swim for free."), Document(content="Bulky waste is collected.")]
    >>> len(ranker.run("an old couch", documents)["documents"])
    1
    """

    def __init__(
        self,
        model: str,
        top_k: int | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        model_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[FormatOptions]",
    ) -> None:
        self._ranker = self._take(TextRanker, locals(), top_k="top_n")

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document]) -> dict[str, list[Document]]:
        """Return ``{"documents": copies of the best, the best first, each with its score}`` for N documents."""
        found = self._ranker.ranked("run", query, self._texts(documents))
        return {"documents": [replace(documents[i], score=score) for i, score in found]}
