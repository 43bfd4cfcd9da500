"""From what a caller names to the files of a language model, and the tokens that end its texts."""

from os import PathLike

from ..architecture.config_entries import read_tokens
from ..decoders.source import ModelSource
from .folder import FolderSource
from .hub_cache import find_directory


def find_source(name: str | PathLike[str]) -> ModelSource:
    """The files of a model: a directory as transformers saves it, a file .gguf, or a name in the local cache."""
    path = find_directory(name, organization=None)
    if path.is_file() or path.suffix == ".gguf":
        from .gguf.source import GGUFSource

        return GGUFSource(path)
    return FolderSource(path)


def read_end_tokens(source: ModelSource, vocab_size: int) -> frozenset[int]:
    """The tokens that end a text: ``eos_token_id`` of generation_config.json, else of config.json; one, several or
    none."""
    name = "eos_token_id"
    values = source.config if source.generation.get(name) is None else source.generation
    return frozenset(read_tokens(source.path, values, name, vocab_size))
