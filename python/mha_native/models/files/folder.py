"""A model in a folder, as transformers saves it."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ...functions.messages import shown
from ..text.tokenizer import read_library
from .checkpoint import Checkpoint
from .entries import Entries
from .grouped_weights import GroupedWeights
from .json_files import read_json, read_text
from .quantization import read_quantization
from .tensor_file import TensorFiles
from .weight_index import open_weights


class FolderSource:
    """The files of a folder as a `Source`: config.json, model.safetensors, tokenizer.json, and optional ones.

    Config.json is read at once, other files on demand.

    Raises OSError or ValueError if a file cannot be read or is damaged, or if there is an adapter.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.json"
        self.config: Mapping[str, Any] = read_json(self.path, dict)
        if (adapter := folder / "adapter_config.json").exists():
            raise ValueError(f"{adapter} changes the weights; merge the adapter into the model, and save that")
        self._folder = folder

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        """The entries of generation_config.json."""
        return _read_optional(self._folder / "generation_config.json")

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """The entries of tokenizer_config.json."""
        return _read_optional(self._folder / "tokenizer_config.json")

    @cached_property
    def chat_template(self) -> str | None:
        """The chat template in chat_template.jinja, else the default one in tokenizer_config.json."""
        path = self._folder / "chat_template.jinja"
        if path.exists():
            return read_text(path)
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):
            named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
            template = named[0].get("template") if named else None
        if template is not None and not isinstance(template, str):
            path = self._folder / "tokenizer_config.json"
            raise ValueError(f"{path}: chat_template must be a string; got {shown(template)}")
        return template

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json."""
        return (self._folder / "tokenizer.json").exists()

    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer`` of tokenizer.json, without padding and truncation."""
        return read_library(self._folder, self.tokenizer_config, is_cut=False)

    def tensors(self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = "") -> Checkpoint:
        """Return the tensors of `shapes`. In the files names may begin with `prefix`."""
        quantization = read_quantization(Entries(self.path, self.config), by_families=["mxfp4"])

        def opened(folder: Path) -> TensorFiles:
            file = open_weights(folder)
            return file if quantization is None else GroupedWeights(file, quantization)

        return Checkpoint(self._folder, shapes, prefix, opened)


def _read_optional(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = read_json(path, dict) if path.exists() else {}
    return values
