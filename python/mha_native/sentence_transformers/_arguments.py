"""Arguments of sentence-transformers: supported, without effect, or refused."""

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from ..functions.messages import in_the_name_of, listed, shown
from ..models.files.hub_cache import find_directory

# Entries of model_kwargs that say how torch computes and loads.
_WITHOUT_EFFECT = {"attn_implementation", "low_cpu_mem_usage", "trust_remote_code", "add_pooling_layer"}

# Entries of processor_kwargs with the values that tokenizers always have here.
_USUAL_PROCESSOR = {"use_fast": True, "padding_side": "right", "truncation_side": "right"}


class Device(str):
    """The CPU as a device: the str "cpu" with the attribute ``type`` of a torch.device."""

    type = "cpu"


CPU = Device("cpu")


class Formats(NamedTuple):
    """The dtype of the computation, and the format of the weights."""

    dtype: Any = "float32"
    weight_dtype: Any = None


def check_device(function: str, device: object, name: str = "device") -> None:
    """Raise ValueError unless `device` is None, "cpu", torch.device("cpu"), or a list of these."""
    for each in device if isinstance(device, (list, tuple)) else [device]:
        if each is not None and str(each).partition(":")[0] != "cpu":
            raise ValueError(f"{function}: {name} must be 'cpu', where this library computes; got {shown(each)}")


def find_model(function: str, given: Mapping[str, Any], organization: str) -> Path:
    """Return the directory of the model that a constructor was given, downloading it if necessary.

    `organization` completes a short name.
    """
    model, token, cache_folder = (given[name] for name in ("model_name_or_path", "token", "cache_folder"))
    if model is None:
        raise ValueError(f"{function}: model_name_or_path must be the directory of a model, or its name; got None")
    if not isinstance(model, (str, PathLike)):
        raise TypeError(f"{function}: model_name_or_path must be a path; got {shown(model)}")
    with in_the_name_of(function):
        return find_directory(
            model,
            cache_folder=os.environ.get("SENTENCE_TRANSFORMERS_HOME") if cache_folder is None else cache_folder,
            revision=given["revision"],
            local_files_only=given["local_files_only"],
            token=given.get("use_auth_token") if token is None else token,
            organization=organization,
        )


def read_arguments(function: str, given: Mapping[str, Any]) -> tuple[Formats, Any]:
    """Read the arguments of a constructor: the formats of a model, and the most tokens of a text or None."""
    if given.get("modules") is not None:
        raise ValueError(f"{function}: modules must be None, as a model is read from its directory")
    check_device(function, given.get("device"))
    if (backend := given["backend"]) != "torch":
        raise ValueError(f"{function}: backend must be 'torch', which this class replaces; got {shown(backend)}")
    config = _checked(function, "config_kwargs", given["config_kwargs"])
    _refuse_others(function, "config_kwargs", config, {"trust_remote_code", "attn_implementation"})
    processor = given["processor_kwargs"]
    processor = given.get("tokenizer_kwargs") if processor is None else processor
    return _read_model_kwargs(function, given["model_kwargs"]), _read_processor_kwargs(function, processor)


def _read_model_kwargs(function: str, model_kwargs: Mapping[str, Any] | None) -> Formats:
    """Read the formats of a model from `model_kwargs`.

    ``dtype`` (or ``torch_dtype``) may be a torch.dtype or a name. None and "auto" are float32, also for files in 16
    bits, whose weights it represents exactly. ``weight_dtype`` exists in this library only.
    """
    given = _checked(function, "model_kwargs", model_kwargs)
    dtype = given.pop("torch_dtype", None)
    dtype = given.pop("dtype", dtype)
    weight_dtype = given.pop("weight_dtype", None)
    check_device(function, given.pop("device_map", None), "model_kwargs device_map")
    if given.pop("use_safetensors", None) is False:
        raise ValueError(f"{function}: model_kwargs use_safetensors must be True, as no pickles are read; got False")
    _refuse_others(function, "model_kwargs", given, _WITHOUT_EFFECT)
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        dtype = "float32"
    name = str(dtype)
    return Formats(name.removeprefix("torch.") if name.startswith("torch.") else dtype, weight_dtype)


def _read_processor_kwargs(function: str, processor_kwargs: Mapping[str, Any] | None) -> Any:
    """Read the most tokens of a text from `processor_kwargs`; None without an entry."""
    given = _checked(function, "processor_kwargs", processor_kwargs)
    length = given.pop("model_max_length", None)
    usual = {name for name, value in given.items() if name in _USUAL_PROCESSOR and _USUAL_PROCESSOR[name] == value}
    _refuse_others(function, "processor_kwargs", given, usual | {"clean_up_tokenization_spaces", "trust_remote_code"})
    return length


def _checked(function: str, name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{function}: {name} must be a dict; got {shown(given)}")
    return dict(given)


def _refuse_others(function: str, name: str, given: Mapping[str, Any], known: set[str]) -> None:
    if others := [str(key) for key in given if key not in known]:
        raise ValueError(f"{function}: {name} has unsupported entries: {listed(others)}")
