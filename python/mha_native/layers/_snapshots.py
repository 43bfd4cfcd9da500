"""One snapshot of the weights for each call, while other threads may load weights.

A module with parts calls one object of the core, which never changes. The first call composes it of the cores of the
parts, and later calls find it without a lock. It is dropped before weights or parts of any module change. The next
call waits until the change is complete, and composes it again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Composed = TypeVar("Composed")

_lock = threading.RLock()  # held during changes of weights or parts, and while weights of several modules are read
_composed: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def composed(module: Any, compose: Callable[[], Composed]) -> Composed:
    """Return the object of the core of `module`, which `compose` makes of its parts if there is none."""
    found: Composed | None = _composed.get(module)
    if found is None:
        with _lock:
            found = _composed[module] = compose()
    return found


@contextmanager
def change() -> Iterator[None]:
    """Hold the lock during a change of weights or parts of any module."""
    with _lock:
        _forget()  # first, so that no outdated stack stays if a signal ends the change
        yield
        _forget()  # again, because a signal handler may have composed one


@contextmanager
def no_change() -> Iterator[None]:
    """Hold the lock while the weights of several modules are read."""
    with _lock:
        yield


def _forget() -> None:
    global _composed
    _composed = WeakKeyDictionary()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that the child lacks may have held it
