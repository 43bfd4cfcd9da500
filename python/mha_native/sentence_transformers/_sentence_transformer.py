"""`SentenceTransformer`: embeddings of texts and images, with the arguments of sentence-transformers."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.progress import fill_rows, is_wanted
from ..models import SentenceEncoder
from ..models.text.inputs import checked_texts
from ..models.text.prompts import Prompts
from ._arguments import Formats
from ._images import ImageModel, open_image_model
from ._model import Embedder, Pool, check_call
from ._quantization import Precision, check_precision, quantize_embeddings
from ._similarity import SimilarityFunction
from ._tensors import as_tensor, results

_OUTPUTS = ("sentence_embedding", "token_embeddings", None)

_logger = logging.getLogger(__name__)


class SentenceTransformer(Embedder):
    """Embeddings of texts or images by a pretrained model, a drop-in for the class of sentence-transformers 6.2.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        As for `SentenceEncoder.from_pretrained`.
    device : {"cpu"}, optional
        Or torch.device("cpu"). Other devices are not supported.
    prompts : dict of str to str, optional
        Text before an input, by name. They replace prompts of the model.
    default_prompt_name : str, optional
        The name of the default prompt. Default: as the files of the model say.
    cache_folder : path, optional
        The folder of models that are given by name. Default: SENTENCE_TRANSFORMERS_HOME, or the cache of Hugging Face.
    revision, local_files_only, token
        For a model that is given by name: a branch, tag or commit; download nothing; a token for private models.
        ``use_auth_token`` is the old name of `token`.
    model_kwargs : dict, optional
        ``dtype`` or ``torch_dtype``: the dtype of the computation, a torch.dtype or a name; float32 by default and for
        "auto". ``weight_dtype``: "int8", "int4" or "bfloat16", as for `SentenceEncoder.from_pretrained`. Options of
        torch, such as ``attn_implementation``, have no effect. Other entries are not supported.
    processor_kwargs : dict, optional
        ``model_max_length``: `max_seq_length`. Other entries must ask for the default behaviour. ``tokenizer_kwargs``
        is the old name of this argument.
    config_kwargs : dict, optional
        Must be empty: config.json determines the configuration.
    similarity_fn_name : {"cosine", "dot", "euclidean", "manhattan"} or SimilarityFunction, optional
        Default: as the model says, or "cosine".
    truncate_dim : int, optional
        Keep this many features of an embedding. Default: as the model says, or all.
    trust_remote_code, model_card_data
        Have no effect: no code of a model runs, and no model is saved.
    backend : {"torch"}
        Other values are not supported.
    modules
        Not supported.

    Attributes
    ----------
    prompts : dict of str to str
        You can change them.
    default_prompt_name : str, optional
        You can set it.

    See Also
    --------
    mha_native.models.SentenceEncoder : Computes the embeddings.

    Notes
    -----
    In contrast to that class, results are arrays unless you ask for tensors: the result of `similarity` unless an
    argument is a tensor, and embeddings of tokens unless `convert_to_numpy` is False. The embedding of a text has the
    same bits alone and in any batch. Several threads may use a model at once, and pickle supports it.

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

    _KIND = SentenceEncoder
    _encoder: SentenceEncoder | ImageModel

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
        self._open(locals())
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim

    def _load(self, directory: Path, formats: Formats) -> Prompts:
        images = open_image_model(type(self).__name__, directory, formats)
        if images is None:
            return super()._load(directory, formats)
        self._encoder = images
        return images._settings.prompts

    def encode(
        self,
        inputs: Any = None,
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
        """Embed texts, or images and texts.

        Parameters
        ----------
        inputs : str, or N of them
            A long text is cut to `max_seq_length` tokens. ``sentences`` is the old name of this argument. A model of
            images takes PIL images, file objects, arrays [H, W, C] or [C, H, W], paths of image files, data URIs, and
            dicts ``{"image": ...}``; one that also reads texts takes both in one list. URLs are unsupported.
        prompt_name : str, optional
            The name of one of `prompts`, put before each text. Default: `default_prompt_name`.
        prompt : str, optional
            The prompt itself; it has priority over `prompt_name`.
        batch_size, chunk_size : int
            Have no effect: texts of any length are packed one after another.
        show_progress_bar : bool, optional
            On standard error. Default: if messages of the level INFO are logged.
        output_value : {"sentence_embedding", "token_embeddings", None}
            "token_embeddings" gives the vectors of the tokens of each text, before pooling; None gives a dict of all.
        precision : {"float32", "int8", "uint8", "binary", "ubinary"}
            See `quantize_embeddings`; these texts determine the ranges.
        convert_to_numpy, convert_to_tensor : bool
            With `convert_to_tensor` the result is a tensor of torch. If both are False, it is a list of tensors.
        device : {"cpu"}, or several, optional
            One process uses all cores.
        normalize_embeddings : bool
            Scale embeddings to length 1. False leaves a normalization of the model in place.
        truncate_dim : int, optional
            Keep this many features. Default: the attribute.
        pool : dict, optional
            The result of `start_multi_process_pool`; it has no effect.
        **kwargs
            ``task`` is accepted; it has no effect on models of this class.

        Returns
        -------
        embeddings : float32 [N, E], or of `precision`
            For one str [E], for no texts [0]. Embeddings of tokens: a list of N [T, E], for one str [T, E].

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or an argument is not valid.
        """
        function = f"{type(self).__name__}.encode"
        sentences = kwargs.pop("sentences", None)
        inputs = sentences if inputs is None else inputs
        check_precision(function, precision)
        if output_value not in _OUTPUTS:
            known = listed(map(repr, _OUTPUTS))
            raise ValueError(f"{function}: output_value must be one of {known}; got {shown(output_value)}")
        check_call(function, batch_size, device, pool, chunk_size, kwargs)
        is_one, texts = self._inputs(function, inputs)
        before = self._prompt(function, prompt_name, prompt)
        shows = bool(texts) and is_wanted(show_progress_bar, _logger)
        as_arrays = convert_to_numpy and not convert_to_tensor
        if output_value != "sentence_embedding":
            if isinstance(self._encoder, ImageModel):
                raise ValueError(f"{function}: output_value must be 'sentence_embedding' for a model of images")
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

    @property
    def truncate_dim(self) -> int | None:
        """The number of features of an embedding that calls keep by default; None keeps all. You can set it."""
        return self._encoder.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, truncate_dim: int | None) -> None:
        with in_the_name_of(type(self).__name__):
            self._encoder.truncate_dim = truncate_dim

    @contextlib.contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Set `truncate_dim` within a ``with`` statement."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def modalities(self) -> list[str]:
        """The kinds of inputs that the model takes: "text", "image", or both."""
        return self._encoder.modalities if isinstance(self._encoder, ImageModel) else ["text"]

    def supports(self, modality: str) -> bool:
        """Return whether the model takes inputs of a kind."""
        return modality in self.modalities

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
        """Embed texts; the old name of `encode` with a `pool`."""
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

    def _embeddings(
        self, texts: list[Any], prompt: str, truncate_dim: int | None, normalize: bool | None, shows: bool
    ) -> NDArray[Any]:
        arguments: dict[str, Any] = {"prompt": prompt, "truncate_dim": truncate_dim, "normalize": normalize}
        if not shows:
            return self._encoder.encode(texts, **arguments)
        rows = np.empty((len(texts), self._encoder.encode([], **arguments).shape[1]), np.float32)
        unit = "inputs" if isinstance(self._encoder, ImageModel) else "texts"
        return fill_rows(rows, self._encoder.encode_batches(texts, **arguments), unit, True)

    def _inputs(self, function: str, inputs: Any) -> tuple[bool, list[Any]]:
        """Return whether `inputs` is one input, and the list of all inputs."""
        if isinstance(self._encoder, ImageModel):
            return self._encoder.inputs_in(function, inputs)
        is_one = isinstance(inputs, str)
        with in_the_name_of(function, texts="inputs"):
            return is_one, list(checked_texts(function, [inputs] if is_one else inputs))

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
        """Compute the vectors of the tokens of each text; if `output_value` is None, a dict with all results."""
        assert isinstance(self._encoder, SentenceEncoder)
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
