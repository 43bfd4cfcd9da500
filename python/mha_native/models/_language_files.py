"""From what a caller names to the files of a language model, and the tokens that end its texts."""

from os import PathLike

from .._messages import shown
from ._hub_cache import find_directory
from .decoders.folder_source import FolderSource
from .decoders.source import ModelSource


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
    given = source.generation.get("eos_token_id")
    given = source.config.get("eos_token_id") if given is None else given
    tokens = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise ValueError(
            f"{source.path}: eos_token_id must be of tokens from 0 to {vocab_size - 1}; got {shown(given)}"
        )
    return frozenset(tokens)
