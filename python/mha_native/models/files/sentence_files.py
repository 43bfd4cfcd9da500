"""Files beside a transformer that say what of a text it reads: how many tokens, and whether in lower case."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import shown
from .entries import Entries
from .json_files import read_json

# What sentence-transformers calls its settings of a transformer: the first one that is there counts.
_FILE_NAMES = [
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]

# What is there since version 5.4, if the model does what is computed here.
_TASKS = {  # what a transformer is for: the output of transformers that counts, and its name in sentence-transformers
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
}
_UNSET = ("processing_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path")

# Arguments of functions of transformers, and those of them that have no effect on what is computed here.
_ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
_WITHOUT_EFFECT = {"trust_remote_code", "add_pooling_layer", "attn_implementation", "dtype", "torch_dtype"}

_KNOWN = {
    "max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name", "unpad_inputs",
    *_UNSET, *_ARGUMENTS,
}  # fmt: skip


class SentenceConfig(NamedTuple):
    """What of a text counts."""

    max_seq_length: int
    lower_case: bool
    tokenizer: Mapping[str, Any]  # tokenizer_config.json, or nothing


def read_sentence_config(
    folder: Path,
    max_positions: int,
    is_listed: bool,
    unused_positions: int = 0,
    task: str = "feature-extraction",
) -> SentenceConfig:
    """Read the files in the folder of a transformer that has so many positions, and others that are of no token.

    The settings of sentence-transformers count if modules.json lists the transformer. Their `max_seq_length` comes
    first, then `model_max_length` of tokenizer_config.json, as far as there are positions, then all positions. What
    counts the unused ones, too, has as many tokens as there can be.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If it says what cannot be, or what is not computed.
    """
    lower_case, path = False, folder / "tokenizer_config.json"
    tokenizer = read_json(path, dict) if path.exists() else {}
    length = _tokenizer_length(path, tokenizer, max_positions)
    settings = settings_file(folder) if is_listed else None
    if settings is not None:
        entries = Entries.read(settings)
        _check_computed(entries, task)
        lower_case = entries.flag("do_lower_case")
        if entries.has("max_seq_length"):
            length = entries.size("max_seq_length")
            if length > max_positions + unused_positions:
                raise ValueError(
                    f"{settings}: max_seq_length must be at most max_position_embeddings, "
                    f"{max_positions + unused_positions}; got {length}"
                )
            length = min(length, max_positions)
    return SentenceConfig(length, lower_case, tokenizer)


def settings_file(folder: Path) -> Path | None:
    """The settings of sentence-transformers that count in the folder of a transformer, if there are some."""
    return next((folder / name for name in _FILE_NAMES if (folder / name).exists()), None)


def _tokenizer_length(path: Path, values: Mapping[str, Any], max_positions: int) -> int:
    """The most tokens, of which transformers writes 10^30 where it knows no limit."""
    length = values.get("model_max_length", values.get("max_len"))  # the latter is its old name
    if length is None:
        return max_positions
    if type(length) not in (int, float) or not length >= 1 or min(length, max_positions) % 1:
        raise ValueError(f"{path}: model_max_length must be an integer of at least 1; got {shown(length)}")
    return int(min(length, max_positions))


def _check_computed(entries: Entries, task: str) -> None:
    """Refuse settings of sentence-transformers that ask for an unsupported feature."""
    path, values = entries
    entries.refuse_others(_KNOWN)
    output, name = _TASKS[task]
    entries.expect({"transformer_task": task, "module_output_name": name})
    texts = {"method": "forward", "method_output_name": output}
    modalities = values.get("modality_config", {"text": texts})
    if not isinstance(modalities, dict) or modalities.get("text") != texts:
        raise ValueError(f"{path}: modality_config must have text as {texts}; got {shown(modalities)}")
    for name in _UNSET:
        if values.get(name):
            raise ValueError(f"{path}: {name} must be absent; got {shown(values[name])}")
    for name in _ARGUMENTS:
        arguments = values.get(name) or {}
        if not isinstance(arguments, dict) or not arguments.keys() <= _WITHOUT_EFFECT:
            raise ValueError(f"{path}: {name} must be empty; got {shown(arguments)}")
