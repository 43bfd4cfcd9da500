"""The common base of the drop-in classes: prompts, the device, and pools of processes."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..functions.messages import in_the_name_of, listed, shown
from ..layers._constructor_arguments import checked_size
from ..models import SentenceEncoder
from ..models.text.prompts import Prompts
from ._arguments import CPU, Device, check_device
from ._images import ImageModel

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Pool = dict[Literal["input", "output", "processes"], Any]

_logger = logging.getLogger(__name__)


class Model:
    """A model on the CPU, with prompts before the inputs."""

    prompts: dict[str, str]
    default_prompt_name: str | None

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
    """The length limit of classes with an encoder."""

    _encoder: SentenceEncoder | ImageModel

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text, including special tokens. You can set it, up to the positions of the model."""
        length: int = self._encoder.max_length
        return length

    @max_seq_length.setter
    def max_seq_length(self, max_seq_length: int) -> None:
        with in_the_name_of(type(self).__name__, max_length="max_seq_length"):
            self._encoder.max_length = max_seq_length


def check_processes(function: str, device: object, pool: Pool | None, chunk_size: int | None) -> None:
    """Raise ValueError for another device than the CPU, a pool of other processes, or a wrong chunk size."""
    check_device(function, device)
    if chunk_size is not None:
        checked_size(function, "chunk_size", chunk_size)
    if pool is not None and not (isinstance(pool, dict) and pool.get("processes") == []):
        raise ValueError(f"{function}: pool must be a result of start_multi_process_pool; got {shown(pool)}")
