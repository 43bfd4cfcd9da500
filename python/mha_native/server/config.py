"""The configuration of a server."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

from ..functions.messages import shown
from ..functions.scalars import checked_integer, checked_real


@dataclass(frozen=True)
class Config:
    """The models of a server, and its limits.

    Parameters
    ----------
    models : dict of str to path
        The name of each model for clients, and its directory, its GGUF file, or its name at Hugging Face. The files
        decide what it does: embeddings, reranking, classification or text.
    dtype, weight_dtype : str
        As for `SentenceEncoder.from_pretrained`.
    num_threads : int, optional
        Threads of the computation; default: `mha_native.num_threads`.
    api_keys : tuple of str
        Keys that clients send as ``Authorization: Bearer KEY``. Default: no key is needed.
    cors_origins : tuple of str
        Origins whose pages a browser lets read answers, such as ``https://search.example``. Default: none.
    max_body_bytes : int, default 2,000,000
        Of a request.
    max_inputs : int, default 256
        Texts of a request.
    max_waiting, max_waiting_tokens : int
        Requests and tokens of a model that wait; with more the answer is 429. As for `EncodeBatcher`.
    target_seconds : float, default 0.05
        The time of a batch of texts, as for `EncodeBatcher`.
    request_timeout : float, default 60
        Seconds until an answer must be there, or the last piece of a stream.
    max_new_tokens : int, default 4096
        The most new tokens of an answer to a conversation without a limit of its own.
    token_inputs : bool, default False
        Accept tokens in the place of texts of embeddings. Clients such as LangChain send tokens of another model by
        default, which cannot be told from tokens of this one.

    Examples
    --------
    >>> from mha_native.server import Config
    >>> Config({"minilm": "all-MiniLM-L6-v2"}, max_inputs=64).max_inputs
    64
    """

    models: Mapping[str, str | PathLike[str]]
    dtype: str = "float32"
    weight_dtype: str | None = None
    num_threads: int | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 2_000_000
    max_inputs: int = 256
    max_waiting: int = 512
    max_waiting_tokens: int = 262_144
    target_seconds: float = 0.05
    request_timeout: float = 60.0
    max_new_tokens: int = 4096
    token_inputs: bool = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.models, Mapping) or not self.models:
            raise ValueError(f"{name}: models must be a dict with a model at least; got {shown(self.models)}")
        for key in self.models:
            if not isinstance(key, str) or not key or not key.isprintable():
                raise ValueError(f"{name}: models must have printable names; got {shown(key)}")
        for field in ("max_body_bytes", "max_inputs", "max_waiting", "max_waiting_tokens", "max_new_tokens"):
            checked_integer(name, field, getattr(self, field), 1)
        for field in ("target_seconds", "request_timeout"):
            if checked_real(name, field, seconds := getattr(self, field)) <= 0:
                raise ValueError(f"{name}: {field} must be above 0; got {seconds}")
        for field in ("api_keys", "cors_origins"):
            values = getattr(self, field)
            if not isinstance(values, tuple) or not all(isinstance(value, str) and value for value in values):
                raise ValueError(f"{name}: {field} must be a tuple of str, none of them empty")
