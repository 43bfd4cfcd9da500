"""The activation of a cross-encoder on the logits of a pair, as its files say."""

from pathlib import Path

from ...functions.messages import shown
from ..files.json_files import read_json
from ..text.prompts import SETTINGS_FILE
from .activations import checked_activation


def read_activation(directory: Path, config: Path, num_labels: int) -> str:
    """Return the activation of a model, by its name in torch: "torch.nn.Sigmoid".

    config_sentence_transformers.json in `directory` comes first, then the entries of older versions in the file
    `config`. The default is the sigmoid for a single label, and the identity for more.

    Raises OSError or ValueError if a file cannot be read, or if the activation is unsupported. A name in a file is
    looked up, never imported.
    """
    settings = directory / SETTINGS_FILE
    old = read_json(config, dict)
    nested = old.get("sentence_transformers")
    places = [
        (settings, "activation_fn", read_json(settings, dict) if settings.exists() else {}),
        (config, "sentence_transformers.activation_fn", {} if nested is None else nested),
        (config, "sbert_ce_default_activation_function", old),
    ]
    for path, key, values in places:
        if not isinstance(values, dict):
            raise ValueError(f"{path}: sentence_transformers must be an object; got {shown(values)}")
        name = values.get(key.rpartition(".")[2])
        if name is None:
            continue
        return checked_activation(path, key, name)
    return "torch.nn.Sigmoid" if num_labels == 1 else "torch.nn.Identity"
