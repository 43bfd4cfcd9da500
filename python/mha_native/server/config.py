"""The configuration of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from types import MappingProxyType

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_boolean, checked_integer, checked_real
from ..layers._constructor_arguments import checked_dtypes

EMBEDDING, RERANKER, LABELS, ENTITIES = "embedding", "reranker", "classifier", "token-classifier"
TEXT, TEXT_TO_TEXT, SPARSE, SPEECH = "generator", "seq2seq", "sparse", "speech"
KINDS = (EMBEDDING, SPARSE, RERANKER, LABELS, ENTITIES, TEXT, TEXT_TO_TEXT, SPEECH)
COMPATIBLE = ("tei", "vllm")


@dataclass(frozen=True)
class Model:
    """A model of a server, with settings of its own.

    Parameters
    ----------
    path : path
        A directory, a GGUF file, or a name at Hugging Face.
    dtype, weight_dtype : str, optional
        As for `SentenceEncoder.from_pretrained`. Default: the ones of the `Config`.
    kind : str, optional
        "embedding", "sparse", "reranker", "classifier", "token-classifier", "generator", "seq2seq" or "speech".
        Default: as the files say. Without the files of sentence-transformers only "reranker" makes a reranker of a
        language model, and only "sparse" sparse embeddings of a masked language model.
    prompt_name : str, optional
        The prompt of requests for embeddings that name none. Default: the default of the model.

    Examples
    --------
    >>> from mha_native.server import Config, Model
    >>> Config({"minilm": Model("all-MiniLM-L6-v2", weight_dtype="int8")}).max_inputs
    256
    """

    path: str | PathLike[str]
    dtype: str | None = None
    weight_dtype: str | None = None
    kind: str | None = None
    prompt_name: str | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.path, (str, PathLike)) or not str(self.path):
            raise TypeError(f"{name}: path must be a path or a name; got {shown(self.path)}")
        checked_dtypes(name, "float32" if self.dtype is None else self.dtype, self.weight_dtype)
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(f"{name}: kind must be one of {listed(KINDS)}; got {shown(self.kind)}")
        if self.prompt_name is not None and not isinstance(self.prompt_name, str):
            raise TypeError(f"{name}: prompt_name must be a str; got {shown(self.prompt_name)}")


@dataclass(frozen=True)
class Config:
    """The models of a server, and its limits.

    Parameters
    ----------
    models : dict of str to path or Model
        The name of each model for clients, and its directory, its GGUF file, or its name at Hugging Face. The files
        decide what it does: embeddings, reranking, labels of texts or tokens, text, or transcripts of speech.
    dtype, weight_dtype : str
        As for `SentenceEncoder.from_pretrained`.
    num_threads : int, optional
        Threads of the computation; default: `mha_native.num_threads`.
    api_keys : tuple of str
        Keys that clients send as ``Authorization: Bearer KEY``. Default: no key is needed.
    admin_key : str, optional
        The key of requests that load, reload and unload models, see ``/admin/models/NAME``. Default: none can.
    aliases : dict of str to str
        Further names of models, such as ``{"text-embedding-3-small": "minilm"}``.
    any_model_name : bool, default False
        An unknown name stands for the only model of the fitting kind, for clients with a fixed name.
    cors_origins : tuple of str
        Origins whose pages a browser lets read answers, such as ``https://search.example``. Default: none.
    max_body_bytes : int, default 2,000,000
        Of a request.
    max_inputs : int, default 256
        Texts of a request.
    max_waiting, max_waiting_tokens : int, default 512, 262,144
        Requests and tokens of a model that wait; with more the answer is 429. As for `EncodeBatcher`.
    target_seconds : float, default 0.05
        The time of a batch of texts, as for `EncodeBatcher`.
    max_batch_tokens : int, optional
        The most tokens of a batch of several texts, as for `EncodeBatcher`.
    max_wait_seconds : float, default 0
        The time in which texts wait for others, as for `EncodeBatcher`.
    request_timeout : float, default 60
        Seconds until an answer must be whole, or the last piece of a stream sent.
    max_new_tokens : int, default 4096
        The most new tokens of an answer to a conversation without a limit of its own.
    max_audio_bytes : int, default 26,214,400
        Of a request with a recording: 25 MiB.
    max_audio_seconds : float, default 7200
        Of a recording.
    max_recordings : int, default 32
        Requests with a recording, also those that still come; with more the answer is 429.
    audio_timeout : float, default 600
        Seconds until the transcript of a recording must be whole.
    metrics_compat : tuple of {"tei", "vllm"}
        Servers whose names of metrics ``/metrics`` has, too. Default: both.
    token_inputs : bool, default False
        Accept tokens in the place of texts of embeddings. Clients such as LangChain send tokens of another model by
        default, which cannot be told from tokens of this one.
    keep_going : bool, default False
        Serve the other models if one cannot be opened at the start.
    root_path : str, default ""
        The path of the server behind a proxy, such as ``/models``; requests may have it or not.

    Examples
    --------
    >>> from mha_native.server import Config
    >>> Config({"minilm": "all-MiniLM-L6-v2"}, max_inputs=64).max_inputs
    64
    """

    models: Mapping[str, str | PathLike[str] | Model]
    dtype: str = "float32"
    weight_dtype: str | None = None
    num_threads: int | None = None
    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    any_model_name: bool = False
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 2_000_000
    max_inputs: int = 256
    max_waiting: int = 512
    max_waiting_tokens: int = 262_144
    target_seconds: float = 0.05
    max_batch_tokens: int | None = None
    max_wait_seconds: float = 0.0
    request_timeout: float = 60.0
    max_new_tokens: int = 4096
    max_audio_bytes: int = 26_214_400
    max_audio_seconds: float = 7200.0
    max_recordings: int = 32
    audio_timeout: float = 600.0
    metrics_compat: tuple[str, ...] = COMPATIBLE
    token_inputs: bool = False
    keep_going: bool = False
    root_path: str = ""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.models, Mapping) or not self.models:
            raise ValueError(f"{name}: models must be a dict with a model at least; got {shown(self.models)}")
        checked_dtypes(name, self.dtype, self.weight_dtype)
        for key in self.models:
            check_name(name, key)
            with in_the_name_of(f"{name}: models[{key!r}]"):
                self.model(key)
        threads_of_call(name, self.num_threads)
        for number in (
            *("max_body_bytes", "max_inputs", "max_waiting", "max_waiting_tokens", "max_new_tokens"),
            *("max_audio_bytes", "max_recordings"),
        ):
            checked_integer(name, number, getattr(self, number), 1)
        if self.max_batch_tokens is not None:
            checked_integer(name, "max_batch_tokens", self.max_batch_tokens, 1)
        for number in ("target_seconds", "request_timeout", "max_audio_seconds", "audio_timeout"):
            if checked_real(name, number, seconds := getattr(self, number)) <= 0:
                raise ValueError(f"{name}: {number} must be above 0; got {seconds}")
        wait = checked_real(name, "max_wait_seconds", self.max_wait_seconds)
        if not 0 <= wait < self.request_timeout:
            raise ValueError(f"{name}: max_wait_seconds must be from 0 to below request_timeout; got {wait}")
        for flag in ("any_model_name", "token_inputs", "keep_going"):
            checked_boolean(name, flag, getattr(self, flag))
        for texts in ("api_keys", "cors_origins"):
            values = getattr(self, texts)
            if not isinstance(values, tuple) or not all(isinstance(value, str) and value for value in values):
                raise ValueError(f"{name}: {texts} must be a tuple of str, none of them empty")
        compatible = self.metrics_compat
        if not isinstance(compatible, tuple) or not all(each in COMPATIBLE for each in compatible):
            raise ValueError(f"{name}: metrics_compat must be a tuple of {listed(COMPATIBLE)}; got {shown(compatible)}")
        if self.admin_key is not None and (not isinstance(self.admin_key, str) or not self.admin_key):
            raise ValueError(f"{name}: admin_key must be a str that is not empty")
        if not isinstance(self.aliases, Mapping):
            raise TypeError(f"{name}: aliases must be a dict; got {shown(self.aliases)}")
        for alias, known in self.aliases.items():
            if known not in self.models:
                raise ValueError(f"{name}: aliases must name models, {listed(self.models)}; got {shown(known)}")
            if not isinstance(alias, str) or not alias or alias in self.models:
                raise ValueError(f"{name}: aliases must be other names than those of models; got {shown(alias)}")
        path = self.root_path
        if not isinstance(path, str) or (path and (path[0] != "/" or path[-1] == "/")):
            raise ValueError(f'{name}: root_path must be as "/models", or empty; got {shown(path)}')

    def model(self, name: str) -> Model:
        """Return a model with its settings, whose formats are those of all models unless it has its own."""
        given = self.models[name]
        found = given if isinstance(given, Model) else Model(given)
        dtype = self.dtype if found.dtype is None else found.dtype
        weight_dtype = self.weight_dtype if found.weight_dtype is None else found.weight_dtype
        return replace(found, dtype=dtype, weight_dtype=weight_dtype)


def check_name(function: str, name: object) -> None:
    """Raise ValueError unless `name` may be the one of a model."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{function}: models must have printable names; got {shown(name)}")
