"""A model of texts that plain values describe, as packages store and copy what they are given."""

import json
import threading
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ..functions.messages import in_the_name_of, shown
from ..sentence_transformers import CrossEncoder, SentenceTransformer

# The models that are in use, by what they are made of: all plugs of a process that ask for one share it.
_models: WeakValueDictionary[str, Any] = WeakValueDictionary()
_models_lock = threading.Lock()


class DescribedModel:
    """A model, which is read when it is first needed, and how it is called.

    Goes through copies and pickle as its description: where it comes out, the model is read again, unless the process
    has it already.

    Parameters
    ----------
    owner : str
        The name of the user's class, for messages.
    model_name, model_kwargs
        The first argument of `KIND`, and its others.
    **settings
        What the class below has besides.

    Attributes
    ----------
    KIND : type
        Of the model.
    SETTINGS : tuple of str
        The names of the arguments but the first.
    settings : dict
        These arguments, which JSON can hold.
    """

    KIND: ClassVar[type[SentenceTransformer] | type[CrossEncoder]]
    SETTINGS: ClassVar[tuple[str, ...]]

    def __init__(self, owner: str, *, model_name: str, model_kwargs: Mapping[str, Any] | None, **settings: Any) -> None:
        if not isinstance(model_name, str):
            raise TypeError(f"{owner}: model_name must be a str; got {shown(model_name)}")
        check_dict(owner, "model_kwargs", model_kwargs)
        settings |= {"model_name": model_name, "model_kwargs": dict(model_kwargs or {})}
        try:
            self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{owner}: arguments must be what JSON can hold: {error}") from error
        self._owner = owner
        self._model: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._owner, self.settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.settings == other.settings

    def load(self) -> Any:
        """The model, read from its files unless another plug has read it already."""
        if self._model is None:
            name, kwargs = self.settings["model_name"], self.settings["model_kwargs"]
            key = json.dumps([self.KIND.__name__, name, kwargs], sort_keys=True)
            with _models_lock, in_the_name_of(self._owner, model_name_or_path="model_name"):
                model = _models.get(key)
                if model is None:
                    model = _models[key] = self.KIND(name, **kwargs)
            self._model = model
        return self._model


def check_dict(owner: str, name: str, kwargs: Any) -> None:
    """TypeError unless it is a dict, or None."""
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise TypeError(f"{owner}: {name} must be a dict; got {shown(kwargs)}")


def _made(kind: type[DescribedModel], owner: str, settings: dict[str, Any]) -> DescribedModel:
    return kind(owner, **settings)
