"""The common bases of the drop-in classes: prompts, the device, pools of processes, and calls of embeddings."""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..functions.messages import in_the_name_of, listed, shown
from ..layers._constructor_arguments import checked_size
from ..models.text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, Prompts, first_known
from ..models.text_encoder import TextEncoder
from ._arguments import CPU, Device, Formats, check_device, find_model, read_arguments
from ._images import ImageModel
from ._similarity import SimilarityFunction, checked_name
from ._text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Pool = dict[Literal["input", "output", "processes"], Any]

_logger = logging.getLogger(__name__)


class Model:
    """A model on the CPU, with prompts before the inputs."""

    prompts: dict[str, str]
    default_prompt_name: str | None
    max_seq_length: Any  # an attribute or a property

    _ORGANIZATION = "sentence-transformers"  # of names without one

    def _open(self, given: Mapping[str, Any]) -> None:
        """Open the model that the arguments of a constructor describe, and set its prompts and its length."""
        function = type(self).__name__
        formats, length = read_arguments(function, given)
        directory = find_model(function, given, self._ORGANIZATION)
        with in_the_name_of(function):
            known = self._load(directory, formats)
        self._set_prompts(function, given["prompts"], given["default_prompt_name"], known)
        own = given.get("max_length")
        if own is not None or length is not None:
            with in_the_name_of(function, max_seq_length="model_max_length" if own is None else "max_length"):
                self.max_seq_length = length if own is None else own

    def _load(self, directory: Path, formats: Formats) -> Prompts:
        """Read the model in a directory, and return its prompts."""
        raise NotImplementedError

    @property
    def device(self) -> Device:
        """ "cpu", a str with the attribute ``type`` of a torch.device."""
        return CPU

    def to(self, device: Any = "cpu") -> "Self":
        """Return the model itself, which is on the CPU."""
        check_device(f"{type(self).__name__}.to", device)
        return self

    def cpu(self) -> "Self":
        """Return the model itself."""
        return self

    def eval(self) -> "Self":
        """Return the model itself, which is never in training mode."""
        return self

    def get_model_kwargs(self) -> list[str]:
        """Return the names of arguments that `encode` passes to a model: none."""
        return []

    def start_multi_process_pool(self, target_devices: list[str] | None = None) -> Pool:
        """Return a `pool` for `encode`. No process is started, since one process uses all cores."""
        check_device(f"{type(self).__name__}.start_multi_process_pool", target_devices, "target_devices")
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """Do nothing, since `start_multi_process_pool` starts no process."""

    def _prompt(self, function: str, prompt_name: str | None, prompt: str | None) -> str:
        """Return the prompt of a call."""
        if prompt is None:
            prompt = self._default_prompt(function) if prompt_name is None else self._named(function, prompt_name)
        elif prompt_name is not None:
            _logger.warning("%s: prompt_name %s has no effect, since prompt is given", function, shown(prompt_name))
        return Prompts({}, None).chosen(function, None, prompt)

    def _set_prompts(
        self, function: str, given: Mapping[str, str | None] | None, default: str | None, known: Prompts
    ) -> None:
        """Set the prompts and the default: arguments replace the prompts of the model, unless they are None."""
        given = {} if given is None else given
        if not isinstance(given, Mapping) or not all(text is None or isinstance(text, str) for text in given.values()):
            raise TypeError(f"{function}: prompts must be a dict of str; got {shown(given)}")
        texts = {name: known.by_name.get(name, "") if text is None else text for name, text in given.items()}
        self.prompts = known.by_name | texts
        self.default_prompt_name = known.default_name if default is None else default
        self._default_prompt(function)

    def _default_prompt(self, function: str) -> str:
        name = self.default_prompt_name
        return "" if name is None else self._named(function, name, "default_prompt_name")

    def _named(self, function: str, name: str, argument: str = "prompt_name") -> str:
        known = list(self.prompts)
        if name not in known:  # a list, since the name may not be hashable
            among = f", {listed(known)}" if known else ", and there are none"
            raise ValueError(f"{function}: {argument} must be one of prompts{among}; got {shown(name)}")
        return self.prompts[name] or ""


class EncoderLength:
    """The length limit of classes with a model of embeddings."""

    _encoder: TextEncoder | ImageModel

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text, including special tokens. You can set it, up to the positions of the model."""
        length: int = self._encoder.max_length
        return length

    @max_seq_length.setter
    def max_seq_length(self, max_seq_length: int) -> None:
        with in_the_name_of(type(self).__name__, max_length="max_seq_length"):
            self._encoder.max_length = max_seq_length


class Embedder(EncoderLength, Model):
    """A model of embeddings: of queries and documents, and their similarity."""

    _KIND: Any  # a class with `from_pretrained`
    _similarity: str | None = None
    encode: Callable[..., Any]

    def _open(self, given: Mapping[str, Any]) -> None:
        if given["similarity_fn_name"] is not None:
            self.similarity_fn_name = given["similarity_fn_name"]
        super()._open(given)

    def _load(self, directory: Path, formats: Formats) -> Prompts:
        self._encoder = self._KIND.from_pretrained(directory, **formats._asdict())
        return self._encoder._settings.prompts

    def encode_query(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Embed queries: `encode` with the task and the prompt "query", unless you give another prompt."""
        if prompt_name is None and prompt is None:
            prompt_name = self._first_name(QUERY_PROMPTS)
        return self.encode(inputs, prompt_name, prompt, *args, **{"task": "query"} | kwargs)

    def encode_document(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Embed documents: `encode` with the task "document", and with the first of the prompts "document", "passage"
        and "corpus" that the model has, unless you give another prompt."""
        if prompt_name is None and prompt is None:
            prompt_name = self._first_name(DOCUMENT_PROMPTS)
        return self.encode(inputs, prompt_name, prompt, *args, **{"task": "document"} | kwargs)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the similarity of each of `embeddings1` to each of `embeddings2`, by `similarity_fn_name`.

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
        """Compute the similarity of `embeddings1` [N, E] and `embeddings2` [N, E] at the same index.

        Returns
        -------
        scores : [N]
            A tensor if an argument is one, or a list of them; else an array.
        """
        with in_the_name_of(f"{type(self).__name__}.similarity_pairwise"):
            return SimilarityFunction.to_similarity_pairwise_fn(self.similarity_fn_name)(embeddings1, embeddings2)

    @property
    def similarity_fn_name(self) -> str:
        """ "cosine", "dot", "euclidean" or "manhattan". You can set it, also to a SimilarityFunction."""
        return self._encoder.similarity_fn_name if self._similarity is None else self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, similarity_fn_name: str | SimilarityFunction | None) -> None:
        given = similarity_fn_name
        self._similarity = "cosine" if given is None else checked_name(type(self).__name__, given)

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`."""
        return self.max_seq_length

    def get_embedding_dimension(self) -> int:
        """Return E, the features of an embedding."""
        return self._encoder.embed_dim

    def get_sentence_embedding_dimension(self) -> int:
        """Return E; the old name of `get_embedding_dimension`."""
        return self.get_embedding_dimension()

    @property
    def tokenizer(self) -> TextTokenizer:
        """A copy of the tokenizer, with the methods ``encode``, ``tokenize`` and ``decode``."""
        return TextTokenizer(self._encoder._tokenizer.uncut())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the computation, for NumPy."""
        return self._encoder.dtype

    def __repr__(self) -> str:
        return repr(self._encoder).replace(type(self._encoder).__name__, type(self).__name__, 1)

    def _first_name(self, names: tuple[str, ...]) -> str | None:
        """Return the first of `names` that is a prompt of the model."""
        return first_known(names, self.prompts)

    def _first_prompt(self, function: str, names: tuple[str, ...]) -> str:
        """Return the first prompt among `names`, or the default prompt."""
        return self._prompt(function, self._first_name(names), None)


def check_call(
    function: str,
    batch_size: int,
    device: object,
    pool: Pool | None,
    chunk_size: int | None,
    others: Iterable[str] = (),
) -> None:
    """Raise TypeError or ValueError for a wrong size, another device than the CPU, a pool of other processes, or for
    arguments of a call that models do not have."""
    checked_size(function, "batch_size", batch_size)
    if unknown := set(others) - {"task"}:
        raise ValueError(f"{function}: a model of this kind has no arguments {listed(sorted(unknown))}")
    check_device(function, device)
    if chunk_size is not None:
        checked_size(function, "chunk_size", chunk_size)
    if pool is not None and not (isinstance(pool, dict) and pool.get("processes") == []):
        raise ValueError(f"{function}: pool must be a result of start_multi_process_pool; got {shown(pool)}")
