"""A setting of the whole process, which several threads and tasks may choose for overlapping times."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_lock = threading.RLock()  # held while choices change; a signal handler may change them, too
_settings: list[Choices[Any]] = []


class Choice(Generic[T]):
    """A value of a setting. It ends with a ``with`` block: its own, or else the one in which it was made."""

    def __init__(self, value: T, block: Choice[T] | None, owner: object | None) -> None:
        self.value, self.block, self.has_block = value, block, False
        # The object that may still enter a block of its own: until then, older choices may be needed again.
        self._owner = None if owner is None else weakref.ref(owner)

    @property
    def may_enter(self) -> bool:
        """Whether the object that made this choice can still enter a ``with`` block."""
        return self._owner is not None and self._owner() is not None


class Choices(Generic[T]):
    """The choices of one setting that have not ended. The newest one is applied; without any, None is.

    Threads and tasks each have their own ``with`` blocks. Blocks may end in any order.
    """

    def __init__(self, apply: Callable[[T | None], None]) -> None:
        self._apply = apply
        self._current: dict[Choice[T], None] = {}  # from the oldest to the newest
        self._blocks: ContextVar[tuple[Choice[T], ...]] = ContextVar("blocks", default=())  # from outer to inner
        _settings.append(self)

    def make(self, value: T | None, owner: object | None = None) -> Choice[Any]:
        """Apply a value, and return its choice. `owner` is the object that may enter a block by this choice."""
        with _lock:
            block = next((each for each in reversed(self._blocks.get()) if each in self._current), None)
            choice: Choice[Any] = Choice(value, block, owner)
            self._apply(value)  # first, because it may refuse the value
            replaced = [x for x in self._current if x.block is block and not x.has_block and not x.may_enter]
            for each in replaced[:-1]:  # the last one counts again if the new one ends
                del self._current[each]
            self._current[choice] = None
        return choice

    def enter(self, choice: Choice[T]) -> None:
        """Let a new choice last until the end of a block of its own."""
        with _lock:
            choice.has_block = True
            self._current.setdefault(choice)
        self._blocks.set((*self._blocks.get(), choice))

    def end(self, choice: Choice[T]) -> None:
        """End the block of a choice, and the choices that were made in it and have no block of their own."""
        self._blocks.set(tuple(each for each in self._blocks.get() if each is not choice))
        with _lock:
            choice.has_block = False
            self._keep([x for x in self._current if x is not choice and (x.has_block or x.block is not choice)])

    def keep_own(self) -> None:
        """End the blocks of other threads and tasks: a forked child does not have them."""
        own = self._blocks.get()
        self._keep([x for x in self._current if not x.has_block or x in own])

    def _keep(self, choices: list[Choice[T]]) -> None:
        self._current = dict.fromkeys(choices)
        self._apply(choices[-1].value if choices else None)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that the child lacks may have held it
    for setting in _settings:
        setting.keep_own()


os.register_at_fork(after_in_child=_after_fork)
