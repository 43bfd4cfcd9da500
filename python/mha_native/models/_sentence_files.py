"""Files of sentence-transformers beside a model: the most tokens of a text, and how their vectors become one."""

from pathlib import Path
from typing import NamedTuple

from ._checkpoint import FUNCTION, read_json, read_size

_POOLING_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class SentenceConfig(NamedTuple):
    """What modules.json, 1_Pooling/config.json and sentence_bert_config.json say. Each of them may be absent."""

    max_seq_length: int
    lower_case: bool
    pooling: str  # "mean", or "cls": the first token
    normalize: bool


def read_sentence_config(directory: Path, max_positions: int) -> SentenceConfig:
    """Read the files. Defaults without them: all positions, the mean of the tokens, scaled to length 1."""
    pooling_path, normalize = directory / "1_Pooling" / "config.json", True
    if (path := directory / "modules.json").exists():
        folder, normalize = _read_modules(path)
        pooling_path = directory / folder / "config.json"
    pooling = _read_pooling(pooling_path) if pooling_path.exists() else "mean"

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
            f"{FUNCTION}: {path} must list Transformer, Pooling and perhaps Normalize; "
            f"got {', '.join(kinds) or 'nothing'}"
        )
    if entries[0].get("path") != "":
        raise ValueError(f"{FUNCTION}: {path} must have the Transformer beside it; got {entries[0].get('path')!r}")
    return str(entries[1].get("path")), len(kinds) == 3


def _read_pooling(path: Path) -> str:
    values = read_json(path, dict)
    modes = [name for name, on in values.items() if name.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise ValueError(
            f"{FUNCTION}: {path} must choose {' or '.join(_POOLING_MODES)}, and nothing else; "
            f"got {', '.join(modes) or 'none'}"
        )
    return _POOLING_MODES[modes[0]]
