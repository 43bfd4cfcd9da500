"""Models for plugs: described by values of JSON, and shared within a process by all that describe the same one."""

import json
import threading
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from ..functions.dtypes import dtype_name, numpy_dtype
from ..functions.messages import in_the_name_of, shown
from ..sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

# Models in use, by kind and arguments.
_models: WeakValueDictionary[str, Any] = WeakValueDictionary()
_models_lock = threading.Lock()


class SharedModel:
    """A model that is read on first use, and the settings of its calls.

    Copies and pickles hold the settings alone. A copy reads the model again, unless its process has the model already.
    `owner` is the name of the user's class, for messages; `model_kwargs` are further arguments of `KIND`. `settings`
    has the arguments as JSON holds them, without formats that are None.
    """

    KIND: ClassVar[type[SentenceTransformer] | type[SparseEncoder] | type[CrossEncoder]]

    def __init__(
        self,
        owner: str,
        *,
        model_name: str,
        model_kwargs: Mapping[str, Any] | None = None,
        dtype: Any = None,
        weight_dtype: Any = None,
        **settings: Any,
    ) -> None:
        if not isinstance(model_name, str):
            raise TypeError(f"{owner}: model_name must be a str; got {shown(model_name)}")
        check_dict(owner, "model_kwargs", model_kwargs)
        kwargs = dict(model_kwargs or {})
        if "model_kwargs" in kwargs:
            check_dict(owner, "model_kwargs['model_kwargs']", kwargs["model_kwargs"])
            message = f"{owner}: model_kwargs['model_kwargs'] is deprecated; pass dtype and weight_dtype directly"
            warnings.warn(message, DeprecationWarning, stacklevel=4)
        formats = {"dtype": dtype, "weight_dtype": weight_dtype}
        self._formats = {name: _name_of_format(owner, name, x) for name, x in formats.items() if x is not None}
        settings = {"model_name": model_name, **settings, "model_kwargs": kwargs, **self._formats}
        try:
            self.settings: dict[str, Any] = json.loads(json.dumps(settings, default=_plain))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{owner}: arguments must be values of JSON: {error}") from error
        self._owner = owner
        self._model: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._owner, self.settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.settings == other.settings

    def load(self) -> Any:
        """Return the model, read from its files unless another plug has it."""
        if self._model is None:
            name, kwargs = self.settings["model_name"], self.settings["model_kwargs"]
            formats = (kwargs.get("model_kwargs") or {}) | self._formats
            arguments = kwargs | ({"model_kwargs": formats} if formats else {})
            key = json.dumps([self.KIND.__name__, name, arguments], sort_keys=True)
            with _models_lock, in_the_name_of(self._owner, model_name_or_path="model_name"):
                model = _models.get(key)
                if model is None:
                    model = _models[key] = self.KIND(name, **arguments)
            self._model = model
        return self._model


def check_prompts(owner: str, prompts: Mapping[str, Any]) -> None:
    """Raise TypeError unless each of `prompts` is a str or None."""
    for name, prompt in prompts.items():
        if not (prompt is None or isinstance(prompt, str)):
            raise TypeError(f"{owner}: {name} must be a str or None; got {shown(prompt)}")


def check_dict(owner: str, name: str, kwargs: Any) -> None:
    """Raise TypeError unless `kwargs` is a dict or None."""
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise TypeError(f"{owner}: {name} must be a dict; got {shown(kwargs)}")


def _name_of_format(owner: str, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return dtype_name(numpy_dtype(f"{owner}: {name} must be a dtype or the name of one", value))


def _plain(value: object) -> Any:
    """Convert numbers of NumPy for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _made(kind: type[SharedModel], owner: str, settings: dict[str, Any]) -> SharedModel:
    return kind(owner, **settings)
