"""The settings of texts in the folder of a transformer: the number of tokens, and lower case."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import shown
from .entries import Entries
from .json_files import read_json

# Names of the settings of sentence-transformers for a transformer. The first file that exists counts.
_FILE_NAMES = [
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]

# Entries since version 5.4. Each task has an output of transformers, and its name in sentence-transformers.
_TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
    "fill-mask": ("logits", "token_embeddings"),
}

# The forms of models of images: vectors of images and texts, since transformers 5 and before; and rows of an image.
_FEATURES = {
    modality: {"method": f"get_{modality}_features", "method_output_name": "pooler_output"}
    for modality in ("text", "image")
}
_FEATURES_OF_TENSORS = {modality: {**given, "method_output_name": None} for modality, given in _FEATURES.items()}
_ROWS = {"image": {"method": "forward", "method_output_name": "last_hidden_state"}}

_UNSET = ("processing_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path")

# Arguments for functions of transformers, and the names in them that have no effect on the computation here.
_ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
_WITHOUT_EFFECT = {"trust_remote_code", "add_pooling_layer", "attn_implementation", "dtype", "torch_dtype"}

_KNOWN = {
    "max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name", "unpad_inputs",
    *_UNSET, *_ARGUMENTS,
}  # fmt: skip


class SentenceConfig(NamedTuple):
    """The limit and the form of the texts that a model reads."""

    max_seq_length: int
    lower_case: bool
    tokenizer: Mapping[str, Any]  # tokenizer_config.json; empty without it


def read_sentence_config(
    folder: Path,
    max_positions: int,
    is_listed: bool,
    unused_positions: int = 0,
    task: str = "feature-extraction",
) -> SentenceConfig:
    """Read the settings of texts in the folder of a transformer with `max_positions` positions for tokens.

    The settings of sentence-transformers count if modules.json lists the transformer. The length is their
    `max_seq_length`, else `model_max_length` of tokenizer_config.json, and at most `max_positions`. `max_seq_length`
    may also count the `unused_positions`, which the table of positions has in addition.

    Raises OSError or ValueError if a file cannot be read or is damaged, or asks for an unsupported feature.
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


def reads_images(folder: Path) -> bool:
    """Return whether the transformer in a folder reads images, as its settings say."""
    path = settings_file(folder)
    modalities = None if path is None else read_json(path, dict).get("modality_config")
    return isinstance(modalities, dict) and "image" in modalities


class ImageModalities(NamedTuple):
    """The vectors that sentence-transformers takes of a model of images."""

    has_texts: bool  # whether it also embeds texts, by one vector for each
    max_seq_length: int | None  # in tokens of a text


def read_image_modalities(folder: Path, is_clip: bool) -> ImageModalities | None:
    """Read the settings of a transformer that modules.json lists; None without them.

    Raises OSError or ValueError if the file cannot be read or is damaged, or asks for an unsupported feature.
    """
    path = settings_file(folder)
    if path is None:
        return None
    entries = Entries.read(path)
    _check_known(entries)
    given = entries.values.get("modality_config", _FEATURES if is_clip else None)
    has_texts = given in (_FEATURES, _FEATURES_OF_TENSORS)
    if not has_texts and given != _ROWS:
        raise ValueError(f"{path}: modality_config must be {_FEATURES} or {_ROWS}; got {shown(given)}")
    output = "sentence_embedding" if has_texts else "token_embeddings"
    entries.expect({"transformer_task": "feature-extraction", "module_output_name": output, "do_lower_case": False})
    return ImageModalities(has_texts, entries.size_or_none("max_seq_length"))


def settings_file(folder: Path) -> Path | None:
    """Return the file of settings of sentence-transformers in the folder of a transformer, or None."""
    return next((folder / name for name in _FILE_NAMES if (folder / name).exists()), None)


def _tokenizer_length(path: Path, values: Mapping[str, Any], max_positions: int) -> int:
    """Return the largest number of tokens. Transformers writes 10^30 for a tokenizer without a limit."""
    length = values.get("model_max_length", values.get("max_len"))  # the latter is its old name
    if length is None:
        return max_positions
    if type(length) not in (int, float) or not length >= 1 or min(length, max_positions) % 1:
        raise ValueError(f"{path}: model_max_length must be an integer of at least 1; got {shown(length)}")
    return int(min(length, max_positions))


def _check_computed(entries: Entries, task: str) -> None:
    """Refuse settings of sentence-transformers that ask for an unsupported feature."""
    path, values = entries
    output, name = _TASKS[task]
    entries.expect({"transformer_task": task, "module_output_name": name})
    texts = {"method": "forward", "method_output_name": output}
    modalities = values.get("modality_config", {"text": texts})
    if not isinstance(modalities, dict) or modalities.get("text") != texts:
        raise ValueError(f"{path}: modality_config must have text as {texts}; got {shown(modalities)}")
    message = {**texts, "format": "flat"}
    if task == "text-generation" and modalities.get("message", message) != message:
        raise ValueError(f"{path}: modality_config must have message as {message}; got {shown(modalities)}")
    _check_known(entries, task)


def _check_known(entries: Entries, task: str = "feature-extraction") -> None:
    """Refuse entries that are unknown, or that ask for other computations than the default."""
    path, values = entries
    entries.refuse_others(_KNOWN)
    for name in _UNSET:
        if task == "text-generation" and _is_of_template(name, values.get(name)):
            continue
        if values.get(name):
            raise ValueError(f"{path}: {name} must be absent; got {shown(values[name])}")
    for name in _ARGUMENTS:
        arguments = values.get(name) or {}
        if not isinstance(arguments, dict) or not arguments.keys() <= _WITHOUT_EFFECT:
            raise ValueError(f"{path}: {name} must be empty; got {shown(arguments)}")


def _is_of_template(name: str, value: object) -> bool:
    """Return whether an entry is processing_kwargs that say no more than how a chat template ends."""
    if name != "processing_kwargs" or not isinstance(value, dict) or value.keys() != {"chat_template"}:
        return False
    options = value["chat_template"]
    return isinstance(options, dict) and options.keys() <= {"add_generation_prompt"}
