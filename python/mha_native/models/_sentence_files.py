"""Files of sentence-transformers beside a model: the most tokens of a text, and how their vectors become one."""

from pathlib import Path, PurePath
from typing import NamedTuple

from .._messages import listed, shown
from ._model_files import FUNCTION, read_json, read_size

_POOLING_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

_LONGEST_NAME = 255  # characters of a folder's name: no file system of Linux has longer ones


class SentenceConfig(NamedTuple):
    """What modules.json, 1_Pooling/config.json and sentence_bert_config.json say. Each of them may be absent.

    The folder that modules.json has for the Pooling must be there.
    """

    max_seq_length: int
    lower_case: bool
    pooling: str  # "mean", or "cls": the first token
    normalize: bool


def read_sentence_config(directory: Path, max_positions: int) -> SentenceConfig:
    """Read the files. Defaults without them: all positions, the mean of the tokens, scaled to length 1."""
    pooling, normalize = "mean", True
    if (path := directory / "modules.json").exists():
        folder, normalize = _read_modules(path)
        pooling = _read_pooling(directory / folder / "config.json")
    elif (path := directory / "1_Pooling" / "config.json").exists():
        pooling = _read_pooling(path)

    length, lower_case = max_positions, False
    if (path := directory / "sentence_bert_config.json").exists():
        values = read_json(path, dict)
        if values.get("max_seq_length") is not None:
            length = read_size(path, values, "max_seq_length")
        lower_case = values.get("do_lower_case") is True
    if length > max_positions:
        raise ValueError(
            f"{FUNCTION}: {path}: max_seq_length must be at most max_position_embeddings, {max_positions}; got {length}"
        )
    return SentenceConfig(length, lower_case, pooling, normalize)


def _read_modules(path: Path) -> tuple[str, bool]:
    """The folder of the pooling, and whether embeddings are scaled to length 1."""
    modules = read_json(path, list)
    entries = [entry if isinstance(entry, dict) else {} for entry in modules]
    kinds = [str(entry.get("type")).rpartition(".")[2] for entry in entries]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{FUNCTION}: {path} must list Transformer, Pooling and perhaps Normalize; got {listed(kinds) or 'nothing'}"
        )
    beside, folder = entries[0].get("path"), entries[1].get("path")
    if beside != "":
        raise ValueError(f"{FUNCTION}: {path} must have the Transformer beside it; got {shown(beside)}")
    if not isinstance(folder, str) or len(folder) > _LONGEST_NAME or not _is_below(folder):
        raise ValueError(f"{FUNCTION}: {path} must have the Pooling in a folder below it; got {shown(folder)}")
    return folder, len(kinds) == 3


def _is_below(folder: str) -> bool:
    """Whether a path leads to no other place than below where it starts."""
    path = PurePath(folder)
    return folder.isprintable() and not path.is_absolute() and ".." not in path.parts and path != PurePath()


def _read_pooling(path: Path) -> str:
    values = read_json(path, dict)
    modes = [name for name, on in values.items() if name.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise ValueError(
            f"{FUNCTION}: {path} must choose {' or '.join(_POOLING_MODES)}, and nothing else; "
            f"got {listed(modes) or 'none'}"
        )
    return _POOLING_MODES[modes[0]]
