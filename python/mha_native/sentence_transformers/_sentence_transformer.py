"""Embeddings of texts, with the arguments of sentence-transformers."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.progress import fill_rows, is_wanted
from ..layers._constructor_arguments import checked_size
from ..models import SentenceEncoder
from ..models.text.inputs import checked_texts
from ._arguments import check_device, find_model, read_arguments
from ._model import Model, Pool, check_pool
from ._quantization import Precision, check_precision, quantize_embeddings
from ._similarity import SimilarityFunction, checked_name
from ._tensors import as_tensor, results
from ._text_tokenizer import TextTokenizer

_OUTPUTS = ("sentence_embedding", "token_embeddings", None)

# Names of prompts; the first that a model has counts.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

_logger = logging.getLogger(__name__)


class SentenceTransformer(Model):
    """Embeddings of texts by a pretrained model, as by the class of that name in sentence-transformers 6.2.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        As for `SentenceEncoder.from_pretrained`.
    device : {"cpu"}, optional
        Or torch.device("cpu"). Others are refused.
    prompts : dict of str to str, optional
        What stands before a text, by name; they come before those of the model.
    default_prompt_name : str, optional
        Of the prompt where a call names none. Default: that of the model, or none.
    cache_folder : path, optional
        Where models are that are given by name. Default: SENTENCE_TRANSFORMERS_HOME, or the cache of Hugging Face.
    revision, local_files_only, token
        For a model that is given by name: a branch, a tag or a commit; download nothing; for what may not be read by
        everybody. ``use_auth_token`` is an old name of the last.
    model_kwargs : dict, optional
        ``dtype`` or ``torch_dtype``: what the model is computed in, a torch.dtype or a name; by default, and if it is
        "auto", float32. ``weight_dtype``: "int8" or "bfloat16", as for `SentenceEncoder.from_pretrained`. What says
        how torch computes, such as ``attn_implementation``, has no effect. All else is refused.
    processor_kwargs : dict, optional
        ``model_max_length``: `max_seq_length`. Others are refused unless they ask for what is done in any case.
        ``tokenizer_kwargs`` is their old name.
    config_kwargs : dict, optional
        Refused unless empty: what config.json says counts.
    similarity_fn_name : {"cosine", "dot", "euclidean", "manhattan"} or SimilarityFunction, optional
        Default: that of the model, or "cosine".
    truncate_dim : int, optional
        How many features of an embedding are kept. Default: as the model says, or all.
    trust_remote_code, model_card_data
        Without effect: no code of a model runs, and no model is saved.
    backend : {"torch"}
        Others are refused.
    modules
        Refused.

    Attributes
    ----------
    prompts : dict of str to str
        May be changed.
    default_prompt_name : str, optional
        May be set.

    See Also
    --------
    mha_native.models.SentenceEncoder : What computes the embeddings.

    Notes
    -----
    Other than there, what is not asked for as a tensor of torch is an array: the result of `similarity` unless an
    argument is a tensor, and embeddings of tokens unless `convert_to_numpy` is False. The embedding of a text has the
    same bits alone and in any batch. May be used from several threads at once, and goes through pickle.

    Examples
    --------
    >>> from mha_native.sentence_transformers import SentenceTransformer
    >>> model = SentenceTransformer("all-MiniLM-L6-v2")
    >>> embeddings = model.encode(["A dog was hungry.", "The puppy wanted food.", "Stocks fell on Tuesday."])
    >>> embeddings.shape
    (3, 384)
    >>> model.similarity(embeddings[0], embeddings).round(2)
    array([[1.  , 0.78, 0.05]], dtype=float32)
    """

    def __init__(
        self,
        model_name_or_path: str | PathLike[str] | None = None,
        *,
        modules: Any = None,
        device: Any = None,
        prompts: Mapping[str, str | None] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        use_auth_token: bool | str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
        backend: str = "torch",
        similarity_fn_name: str | SimilarityFunction | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        function = type(self).__name__
        kwargs = (model_kwargs, tokenizer_kwargs if processor_kwargs is None else processor_kwargs, config_kwargs)
        formats, most_tokens = read_arguments(function, modules, device, backend, *kwargs)
        self._similarity = None if similarity_fn_name is None else checked_name(function, similarity_fn_name)
        directory = find_model(
            function,
            model_name_or_path,
            cache_folder,
            revision,
            local_files_only,
            use_auth_token if token is None else token,
        )
        with in_the_name_of(function):
            self._encoder = SentenceEncoder.from_pretrained(directory, **formats._asdict())
        name = self._encoder.default_prompt_name if default_prompt_name is None else default_prompt_name
        self._set_prompts(function, prompts, self._encoder.prompts, name)
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim
        if most_tokens is not None:
            with in_the_name_of(function, max_seq_length="model_max_length"):
                self.max_seq_length = most_tokens

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"] | None = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Embeddings of texts.

        Parameters
        ----------
        inputs : str, or N of them
            Of a long text the first `max_seq_length` tokens count. ``sentences`` is its old name.
        prompt_name : str, optional
            Of one of `prompts`, which is put before each text. Default: `default_prompt_name`.
        prompt : str, optional
            The prompt itself, which counts if both are given.
        batch_size, chunk_size : int
            Without effect: texts are packed one after another, whatever their lengths.
        show_progress_bar : bool, optional
            On standard error. Default: if messages of the level INFO are logged.
        output_value : {"sentence_embedding", "token_embeddings", None}
            The second gives the vectors of the tokens of each text, before they are pooled; None a dict of everything.
        precision : {"float32", "int8", "uint8", "binary", "ubinary"}
            See `quantize_embeddings`, which takes the ranges from these texts.
        convert_to_numpy, convert_to_tensor : bool
            With the second the result is a tensor of torch. If both are False, it is a list of tensors.
        device : {"cpu"}, or several, optional
            One process uses all cores.
        normalize_embeddings : bool
            Scale embeddings to length 1 in the end; if the model does so, they have it in any case.
        truncate_dim : int, optional
            How many features are kept. Default: the attribute.
        pool : dict, optional
            What `start_multi_process_pool` has returned; without effect.
        **kwargs
            ``task`` may be given; it has no effect on the models that are read here.

        Returns
        -------
        embeddings : float32 [N, E], or of `precision`
            For one str [E], for no texts [0]. Embeddings of tokens: a list of N [T, E], for one str [T, E].

        Raises
        ------
        TypeError, ValueError
            If a text is no str, or an argument is not what it may be.
        """
        function = f"{type(self).__name__}.encode"
        if "sentences" in kwargs:
            sentences = kwargs.pop("sentences")
            inputs = sentences if inputs is None else inputs
        checked_size(function, "batch_size", batch_size)
        if others := kwargs.keys() - {"task"}:
            raise ValueError(f"{function}: a model of this kind has no arguments {listed(sorted(others))}")
        check_precision(function, precision)
        if output_value not in _OUTPUTS:
            known = listed(map(repr, _OUTPUTS))
            raise ValueError(f"{function}: output_value must be one of {known}; got {shown(output_value)}")
        check_device(function, device)
        check_pool(function, pool, chunk_size)
        is_one = isinstance(inputs, str)
        with in_the_name_of(function, texts="inputs"):
            given = checked_texts(function, [inputs] if is_one else inputs)
        texts = list(given)
        before = self._prompt(function, prompt_name, prompt)
        shows = bool(texts) and is_wanted(show_progress_bar, _logger)
        as_arrays = convert_to_numpy and not convert_to_tensor
        if output_value != "sentence_embedding":
            if precision not in (None, "float32"):
                raise ValueError(f"{function}: precision must be 'float32' for {output_value}; got {shown(precision)}")
            found: list[Any] = self._details(function, texts, before, truncate_dim, shows, output_value, as_arrays)
            return found[0] if is_one else found
        with in_the_name_of(function, texts="inputs", normalize="normalize_embeddings"):
            embeddings = self._embeddings(texts, before, truncate_dim, bool(normalize_embeddings) or None, shows)
        if not texts:
            embeddings = np.zeros(0, np.float64 if as_arrays else np.float32)  # as there
        elif precision not in (None, "float32"):
            with in_the_name_of(function):
                embeddings = quantize_embeddings(embeddings, precision)
        return results(function, embeddings, is_one, convert_to_numpy, convert_to_tensor)

    def encode_query(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Embeddings of what is searched for: `encode` with the prompt "query" unless another one is given."""
        if prompt_name is None and prompt is None:
            prompt_name = self._first_name(QUERY_PROMPTS)
        return self.encode(inputs, prompt_name, prompt, *args, **kwargs)

    def encode_document(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Embeddings of what is found: `encode` with the first of the prompts "document", "passage" and "corpus" that
        there is unless another one is given."""
        if prompt_name is None and prompt is None:
            prompt_name = self._first_name(DOCUMENT_PROMPTS)
        return self.encode(inputs, prompt_name, prompt, *args, **kwargs)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How alike each of `embeddings1` is to each of `embeddings2`, by `similarity_fn_name`.

        Parameters
        ----------
        embeddings1 : [N, E] or [E]
            An array, a tensor of torch, or a list of either.
        embeddings2 : [M, E] or [E]

        Returns
        -------
        scores : [N, M]
            A tensor if an argument is one, or a list of them; else an array.
        """
        with in_the_name_of(f"{type(self).__name__}.similarity"):
            return SimilarityFunction.to_similarity_fn(self.similarity_fn_name)(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How alike each of `embeddings1` [N, E] is to its counterpart in `embeddings2` [N, E].

        Returns
        -------
        scores : [N]
            A tensor if an argument is one, or a list of them; else an array.
        """
        with in_the_name_of(f"{type(self).__name__}.similarity_pairwise"):
            return SimilarityFunction.to_similarity_pairwise_fn(self.similarity_fn_name)(embeddings1, embeddings2)

    @property
    def similarity_fn_name(self) -> str:
        """ "cosine", "dot", "euclidean" or "manhattan". May be set, also to a SimilarityFunction."""
        return self._encoder.similarity_fn_name if self._similarity is None else self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, similarity_fn_name: str | SimilarityFunction | None) -> None:
        given = similarity_fn_name
        self._similarity = "cosine" if given is None else checked_name(type(self).__name__, given)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text that count, its special tokens included. May be set, as far as there are
        positions."""
        return self._encoder.max_length

    @max_seq_length.setter
    def max_seq_length(self, max_seq_length: int) -> None:
        with in_the_name_of(type(self).__name__, max_length="max_seq_length"):
            self._encoder.max_length = max_seq_length

    def get_max_seq_length(self) -> int:
        """`max_seq_length`."""
        return self.max_seq_length

    @property
    def truncate_dim(self) -> int | None:
        """How many features of an embedding are kept unless a call says so; None: all. May be set."""
        return self._encoder.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, truncate_dim: int | None) -> None:
        with in_the_name_of(type(self).__name__):
            self._encoder.truncate_dim = truncate_dim

    @contextlib.contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """A ``with`` statement in which `truncate_dim` is this one."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    def get_embedding_dimension(self) -> int:
        """E, the features of an embedding."""
        return self._encoder.embed_dim

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension`, by its old name."""
        return self.get_embedding_dimension()

    @property
    def tokenizer(self) -> TextTokenizer:
        """A copy of the tokenizer, with the methods ``encode``, ``tokenize`` and ``decode``."""
        return TextTokenizer(self._encoder._tokenizer.uncut())

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in, for NumPy."""
        return self._encoder.dtype

    def encode_multi_process(
        self,
        sentences: Iterable[str],
        pool: Pool,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: Precision | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> NDArray[Any]:
        """`encode`, by its old name for a `pool`."""
        embeddings: NDArray[Any] = self.encode(
            sentences,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            precision=precision,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
        )
        return embeddings

    def __repr__(self) -> str:
        return repr(self._encoder).replace(type(self._encoder).__name__, type(self).__name__, 1)

    def _first_name(self, names: tuple[str, ...]) -> str | None:
        """Return the first of `names` that is a prompt of the model."""
        return next((name for name in names if name in self.prompts), None)

    def _first_prompt(self, function: str, names: tuple[str, ...]) -> str:
        """Return the first prompt among `names`, or the default prompt."""
        return self._prompt(function, self._first_name(names), None)

    def _embeddings(
        self, texts: list[str], prompt: str, truncate_dim: int | None, normalize: bool | None, shows: bool
    ) -> NDArray[Any]:
        arguments: dict[str, Any] = {"prompt": prompt, "truncate_dim": truncate_dim, "normalize": normalize}
        if not shows:
            return self._encoder.encode(texts, **arguments)
        rows = np.empty((len(texts), self._encoder.encode([], **arguments).shape[1]), np.float32)
        return fill_rows(rows, self._encoder.encode_batches(texts, **arguments), "texts", True)

    def _details(
        self,
        function: str,
        texts: list[str],
        prompt: str,
        truncate_dim: int | None,
        shows: bool,
        output_value: str | None,
        as_arrays: bool,
    ) -> list[Any]:
        """The vectors of the tokens of each text; or if `output_value` is None a dict of all that there is of it."""
        with in_the_name_of(function, texts="inputs"):
            embeddings = self._embeddings(texts, prompt, truncate_dim, None, shows) if output_value is None else texts
            found = list(self._encoder.encode_to_rows(texts, prompt=prompt))

        def form(array: NDArray[Any]) -> Any:
            return array if as_arrays else as_tensor(function, "convert_to_numpy", array)

        if output_value is not None:
            return [form(rows) for _, rows in found]
        return [
            {
                "input_ids": form(tokens),
                "attention_mask": form(np.ones_like(tokens)),
                "token_embeddings": form(rows),
                "sentence_embedding": form(embedding),
            }
            for (tokens, rows), embedding in zip(found, embeddings, strict=True)
        ]
