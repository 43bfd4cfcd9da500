"""Find the files of a language model, and read the tokens that end its texts."""

from os import PathLike

from .entries import Entries
from .folder import FolderSource
from .gguf_names import find_gguf
from .hub_cache import find_directory
from .source import Source


def find_source(name: str | PathLike[str]) -> Source:
    """Find the files of a model: a directory as transformers saves it, a file .gguf, or a name in the local cache."""
    path = (find_gguf(name) if isinstance(name, str) else None) or find_directory(name, organization=None)
    if path.is_file() or path.suffix == ".gguf":
        from .gguf.source import GGUFSource

        return GGUFSource(path)
    return FolderSource(path)


def read_end_tokens(source: Source, vocab_size: int) -> frozenset[int]:
    """Read the tokens that end a text: ``eos_token_id`` of generation_config.json, else of config.json."""
    name = "eos_token_id"
    values = source.config if source.generation.get(name) is None else source.generation
    return frozenset(Entries(source.path, values).tokens(name, vocab_size))
