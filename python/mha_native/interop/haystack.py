"""Haystack: components that embed queries and documents, and one that ranks documents."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..functions.messages import in_the_name_of, shown
from ..functions.needed_packages import needed_package
from ._described_model import DescribedModel
from ._text_embedder import TextEmbedder
from ._text_ranker import TextRanker

with needed_package(__name__, "haystack-ai", "haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

__all__ = ["MhaNativeDocumentEmbedder", "MhaNativeRanker", "MhaNativeTextEmbedder"]


class _Component:
    """What the components have in common: a model that is read when it is needed, and a description."""

    def _take(self, kind: type[DescribedModel], arguments: dict[str, Any], **settings: Any) -> Any:
        """The model of `settings`; `arguments` are the user's.

        Not an __init__: Haystack makes another class of each component, in which ``super()`` does not work.
        """
        self._arguments = arguments
        with self._in_own_name():
            self._described = kind(type(self).__name__, **settings)
        return self._described

    def warm_up(self) -> None:
        """Read the model."""
        with self._in_own_name():
            self._described.load()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it into the file of a pipeline."""
        return default_to_dict(self, **self._arguments)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Self":
        """The component that `to_dict` has described."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    def _in_own_name(self) -> in_the_name_of:
        names = {"model_name": "model", "query_prompt": "prompt", "document_prompt": "prompt", "top_n": "top_k"}
        return in_the_name_of(type(self).__name__, **names)


class _Texts:
    """What counts of documents: fields of their metadata, and the content.

    Parameters
    ----------
    owner : str
        The name of the component, for messages.
    meta_fields_to_embed, embedding_separator
        As for `MhaNativeDocumentEmbedder`.
    """

    def __init__(self, owner: str, meta_fields_to_embed: list[str] | None, embedding_separator: str) -> None:
        fields = [] if meta_fields_to_embed is None else meta_fields_to_embed
        if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
            raise TypeError(f"{owner}: meta_fields_to_embed must be a list of str; got {shown(fields)}")
        if not isinstance(embedding_separator, str):
            raise TypeError(f"{owner}: embedding_separator must be a str; got {shown(embedding_separator)}")
        self._owner, self._fields, self._separator = owner, list(fields), embedding_separator

    def of(self, documents: list[Document]) -> list[str]:
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise TypeError(f"{self._owner}.run: documents must be a list of Document; got {shown(documents)}")
        return [self._separator.join([*self._meta(document), document.content or ""]) for document in documents]

    def _meta(self, document: Document) -> list[str]:
        values = [document.meta.get(field) for field in self._fields]
        return [str(value) for value in values if value is not None]


@component
class MhaNativeTextEmbedder(_Component):
    """A component of Haystack that embeds a query by a model of sentence-transformers.

    Parameters
    ----------
    model : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SentenceTransformer`.
    prompt : str, optional
        What stands before a query. Default: the prompt of the model for queries, if it has one.
    model_kwargs : dict, optional
        Further arguments of `SentenceTransformer`, such as ``{"truncate_dim": 256}`` or
        ``{"model_kwargs": {"weight_dtype": "int8"}}``: what JSON can hold.
    encode_kwargs : dict, optional
        Of its ``encode``: ``normalize_embeddings``, ``truncate_dim``, ``show_progress_bar``; ``batch_size`` and
        ``device`` are taken and have no effect.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these.

    Notes
    -----
    The model is read by `warm_up`, which a pipeline calls, or by the first `run`. Components of one process that
    describe the same model share it.

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
    ) -> None:
        given = {"model_kwargs": model_kwargs, "encode_kwargs": encode_kwargs}
        arguments = {"model": model, "prompt": prompt, **given}
        self._embedder = self._take(TextEmbedder, arguments, model_name=model, query_prompt=prompt, **given)

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a query.

        Parameters
        ----------
        text : str

        Returns
        -------
        output : dict
            ``{"embedding": E numbers}``
        """
        return {"embedding": self._embedder.queries("run", [text])[0]}


@component
class MhaNativeDocumentEmbedder(_Component):
    """A component of Haystack that embeds documents by a model of sentence-transformers.

    Parameters
    ----------
    model, model_kwargs, encode_kwargs
        As for `MhaNativeTextEmbedder`.
    prompt : str, optional
        What stands before a document. Default: the prompt of the model for documents, if it has one.
    meta_fields_to_embed : list of str, optional
        Fields of the metadata that stand before the content of a document; one that a document lacks is left out.
    embedding_separator : str
        What stands between these and the content.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these.

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
    ) -> None:
        self._texts = _Texts(type(self).__name__, meta_fields_to_embed, embedding_separator)
        given = {"model_kwargs": model_kwargs, "encode_kwargs": encode_kwargs}
        texts = {"meta_fields_to_embed": meta_fields_to_embed, "embedding_separator": embedding_separator}
        arguments = {"model": model, "prompt": prompt, **texts, **given}
        self._embedder = self._take(TextEmbedder, arguments, model_name=model, document_prompt=prompt, **given)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Embed documents.

        Parameters
        ----------
        documents : N Document
            Are not changed.

        Returns
        -------
        output : dict
            ``{"documents": the same N, each with its embedding}``
        """
        embeddings = self._embedder.documents("run", self._texts.of(documents))
        pairs = zip(documents, embeddings, strict=True)
        return {"documents": [replace(document, embedding=embedding) for document, embedding in pairs]}


@component
class MhaNativeRanker(_Component):
    """A component of Haystack that puts documents in the order in which they fit a query, by a cross encoder.

    Parameters
    ----------
    model : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.CrossEncoder`.
    top_k : int, optional
        Most documents that are left. Default: all.
    meta_fields_to_embed, embedding_separator
        As for `MhaNativeDocumentEmbedder`.
    model_kwargs : dict, optional
        Further arguments of `CrossEncoder`: what JSON can hold.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these.

    Examples
    --------
    >>> from haystack import Document
    >>> from mha_native.interop.haystack import MhaNativeRanker
    >>> ranker = MhaNativeRanker("ms-marco-MiniLM-L6-v2", top_k=1)
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
    ) -> None:
        self._texts = _Texts(type(self).__name__, meta_fields_to_embed, embedding_separator)
        texts = {"meta_fields_to_embed": meta_fields_to_embed, "embedding_separator": embedding_separator}
        arguments = {"model": model, "top_k": top_k, **texts, "model_kwargs": model_kwargs}
        self._ranker = self._take(TextRanker, arguments, model_name=model, top_n=top_k, model_kwargs=model_kwargs)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, documents: list[Document]) -> dict[str, list[Document]]:
        """Put documents in order.

        Parameters
        ----------
        query : str
        documents : N Document
            Are not changed.

        Returns
        -------
        output : dict
            ``{"documents": the best of them, the best first, each with its score}``
        """
        found = self._ranker.ranked("run", query, self._texts.of(documents))
        return {"documents": [replace(documents[i], score=score) for i, score in found]}
