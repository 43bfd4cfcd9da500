"""What models of sentence-transformers have in common beside what they compute: prompts, a device, processes."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..functions.messages import listed, shown
from ..layers._constructor_arguments import checked_size
from ..models.text.prompts import Prompts
from ._arguments import CPU, Device, check_device

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Pool = dict[Literal["input", "output", "processes"], Any]

_logger = logging.getLogger(__name__)


class Model:
    """A model on the processor, with texts that stand before the inputs.

    Attributes
    ----------
    prompts : dict of str to str
        By name; may be changed.
    default_prompt_name : str, optional
        Of the one where a call names none; may be set.
    """

    prompts: dict[str, str]
    default_prompt_name: str | None

    @property
    def device(self) -> Device:
        """ "cpu", as a str that has the attribute ``type`` of a torch.device."""
        return CPU

    def to(self, device: Any = "cpu") -> "Self":
        """The model itself, which is on the processor."""
        check_device(f"{type(self).__name__}.to", device)
        return self

    def cpu(self) -> "Self":
        """The model itself."""
        return self

    def eval(self) -> "Self":
        """The model itself, which is never trained."""
        return self

    def get_model_kwargs(self) -> list[str]:
        """What `encode` takes of arguments of a model: nothing."""
        return []

    def start_multi_process_pool(self, target_devices: list[str] | None = None) -> Pool:
        """What `encode` takes as its `pool`. No process is started: this one uses all cores."""
        check_device(f"{type(self).__name__}.start_multi_process_pool", target_devices, "target_devices")
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """Nothing, since `start_multi_process_pool` starts nothing."""

    def _prompt(self, function: str, prompt_name: str | None, prompt: str | None) -> str:
        """What a call puts before each text."""
        if prompt is None:
            prompt = self._default_prompt(function) if prompt_name is None else self._named(function, prompt_name)
        elif prompt_name is not None:
            _logger.warning("%s: prompt_name %s does not count beside prompt", function, shown(prompt_name))
        return Prompts({}, None).chosen(function, None, prompt)

    def _set_prompts(
        self, function: str, given: Mapping[str, str | None] | None, known: dict[str, str], default: str | None
    ) -> None:
        """Take prompts: those that are given come before those of the model, which stand where one is None."""
        if given is None:
            given = {}
        if not isinstance(given, Mapping) or not all(text is None or isinstance(text, str) for text in given.values()):
            raise TypeError(f"{function}: prompts must be a dict of str; got {shown(given)}")
        self.prompts = known | {name: known.get(name, "") if text is None else text for name, text in given.items()}
        self.default_prompt_name = default
        self._default_prompt(function)

    def _default_prompt(self, function: str) -> str:
        name = self.default_prompt_name
        return "" if name is None else self._named(function, name, "default_prompt_name")

    def _named(self, function: str, name: str, argument: str = "prompt_name") -> str:
        known = list(self.prompts)
        if name not in known:  # which may be what no dict can look up
            among = f", {listed(known)}" if known else ", and there are none"
            raise ValueError(f"{function}: {argument} must be one of prompts{among}; got {shown(name)}")
        return self.prompts[name] or ""


def check_pool(function: str, pool: Pool | None, chunk_size: int | None) -> None:
    """ValueError unless they are those of a call that one process makes."""
    if chunk_size is not None:
        checked_size(function, "chunk_size", chunk_size)
    if pool is not None and not (isinstance(pool, dict) and pool.get("processes") == []):
        raise ValueError(f"{function}: pool must be what start_multi_process_pool has returned; got {shown(pool)}")
