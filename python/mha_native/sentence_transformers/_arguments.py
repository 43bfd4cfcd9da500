"""Arguments of sentence-transformers: those that mean something here, those without effect, and those refused."""

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from ..functions.messages import in_the_name_of, listed, shown
from ..models.files.hub_cache import find_directory

# Of model_kwargs: how torch computes and loads, which is not how it is done here.
_WITHOUT_EFFECT = {"attn_implementation", "low_cpu_mem_usage", "trust_remote_code", "add_pooling_layer"}

# Of processor_kwargs: what tokenizers do in any case, if it is this value.
_USUAL_PROCESSOR = {"use_fast": True, "padding_side": "right", "truncation_side": "right"}


class Device(str):
    """The processor as a device: the str "cpu" with the attribute of a torch.device that says so."""

    type = "cpu"


CPU = Device("cpu")


class Formats(NamedTuple):
    """What a model is computed in, and what its weights are stored as."""

    dtype: Any = "float32"
    weight_dtype: Any = None


def check_device(function: str, device: object, name: str = "device") -> None:
    """ValueError unless `device` is the processor: None, "cpu" or torch.device("cpu"), or a list of these."""
    for each in device if isinstance(device, (list, tuple)) else [device]:
        if each is not None and str(each).partition(":")[0] != "cpu":
            raise ValueError(f"{function}: {name} must be 'cpu', where models are computed here; got {shown(each)}")


def find_model(
    function: str,
    model_name_or_path: str | PathLike[str] | None,
    cache_folder: str | PathLike[str] | None,
    revision: str | None,
    local_files_only: bool,
    token: bool | str | None,
    organization: str = "sentence-transformers",
) -> Path:
    """The directory of the model, which is downloaded if need be; a name without an organization is one of its."""
    if model_name_or_path is None:
        raise ValueError(f"{function}: model_name_or_path must be the directory of a model, or its name; got None")
    if not isinstance(model_name_or_path, (str, PathLike)):
        raise TypeError(f"{function}: model_name_or_path must be a path; got {shown(model_name_or_path)}")
    if cache_folder is None:
        cache_folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    with in_the_name_of(function):
        return find_directory(
            model_name_or_path,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            organization=organization,
        )


def read_arguments(
    function: str,
    modules: object,
    device: object,
    backend: object,
    model_kwargs: Mapping[str, Any] | None,
    processor_kwargs: Mapping[str, Any] | None,
    config_kwargs: Mapping[str, Any] | None,
) -> tuple[Formats, Any]:
    """What the arguments of a constructor say: the format of a model, and the most tokens of a text or None.

    ``tokenizer_kwargs`` is the old name of `processor_kwargs`.

    Raises
    ------
    TypeError, ValueError
        If they ask for what is not computed here.
    """
    if modules is not None:
        raise ValueError(f"{function}: modules must be None, as a model is read from its directory")
    check_device(function, device)
    _check_backend(function, backend)
    _check_config_kwargs(function, config_kwargs)
    return _read_model_kwargs(function, model_kwargs), _read_processor_kwargs(function, processor_kwargs)


def _read_model_kwargs(function: str, model_kwargs: Mapping[str, Any] | None) -> Formats:
    """What `model_kwargs` say of the format of a model.

    ``dtype`` (or ``torch_dtype``) may be a torch.dtype or a name. None and "auto" are float32, whatever the files are
    in: it takes weights of 16 bits without a loss. ``weight_dtype`` is of this library alone.
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
    """The most tokens of a text in `processor_kwargs`; None: not there."""
    given = _checked(function, "processor_kwargs", processor_kwargs)
    length = given.pop("model_max_length", None)
    usual = {name for name, value in given.items() if name in _USUAL_PROCESSOR and _USUAL_PROCESSOR[name] == value}
    _refuse_others(function, "processor_kwargs", given, usual | {"clean_up_tokenization_spaces", "trust_remote_code"})
    return length


def _check_config_kwargs(function: str, config_kwargs: Mapping[str, Any] | None) -> None:
    """ValueError if they change the configuration of a model, which counts as its file has it."""
    given = _checked(function, "config_kwargs", config_kwargs)
    _refuse_others(function, "config_kwargs", given, {"trust_remote_code", "attn_implementation"})


def _check_backend(function: str, backend: object) -> None:
    """ValueError unless it is the usual one, in whose place models are computed here."""
    if backend != "torch":
        raise ValueError(f"{function}: backend must be 'torch', in whose place it computes; got {shown(backend)}")


def _checked(function: str, name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{function}: {name} must be a dict; got {shown(given)}")
    return dict(given)


def _refuse_others(function: str, name: str, given: Mapping[str, Any], known: set[str]) -> None:
    if others := [str(key) for key in given if key not in known]:
        raise ValueError(f"{function}: {name} must have nothing that is not computed here; got {listed(others)}")
