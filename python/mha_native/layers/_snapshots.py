"""One snapshot of the weights for each call, whatever other threads load meanwhile.

A module that has parts calls one object of the core, which never changes. It is composed of the cores that the parts
have at the first call, and later calls find it without a lock. It is forgotten before weights or parts of any module
change, and composed again by the next call, which waits until that change is complete.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from .. import _core

_lock = threading.RLock()  # held by whoever changes weights or parts, or reads those of several modules
_stacks: "WeakKeyDictionary[Any, _core.TransformerStack]" = WeakKeyDictionary()


def composed(module: Any, compose: Callable[[], _core.TransformerStack]) -> _core.TransformerStack:
    """What `module` was composed to, or else what `compose` makes of its parts now."""
    stack = _stacks.get(module)
    if stack is None:
        with _lock:
            stack = _stacks[module] = compose()
    return stack


@contextmanager
def change() -> Iterator[None]:
    """Around a change of weights or parts of any module."""
    with _lock:
        _forget()  # now, so that nothing is kept that the change makes wrong if a signal ends it
        yield
        _forget()  # what a signal handler has composed meanwhile


@contextmanager
def no_change() -> Iterator[None]:
    """Around whatever reads the weights of several modules."""
    with _lock:
        yield


def _forget() -> None:
    global _stacks
    _stacks = WeakKeyDictionary()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that the child lacks may have held it
