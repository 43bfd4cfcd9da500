"""Instruction sets and threads: list, choose and explain them."""

from __future__ import annotations

import platform
from typing import Any, TextIO

import numpy as np

from .. import _core
from ._choices import Choice, Choices
from .messages import in_the_name_of, name_of_type, shown
from .scalars import checked_integer

__all__ = [
    "active_isa",
    "available_isas",
    "last_used_isa",
    "num_threads",
    "set_num_threads",
    "show_config",
    "use_isa",
    "use_threads",
]


def available_isas() -> tuple[str, ...]:
    """Return the names of the instruction sets that are built in and that this machine runs, the best one last.

    On a processor that runs the last one slowly, another one is the default: `show_config` says so.

    Examples
    --------
    >>> import mha_native as mha
    >>> mha.active_isa() in mha.available_isas()
    True
    """
    return tuple(name for name in _core.built_isas() if _core.isa_supported(name))


def active_isa() -> str:
    """Return the name of the instruction set of calls: from `use_isa`, ``MHA_NATIVE_ISA``, or the best one here.

    Raises
    ------
    ValueError
        If ``MHA_NATIVE_ISA`` is unknown, or if this machine does not run it.

    Examples
    --------
    >>> import mha_native as mha
    >>> with mha.use_isa("baseline"):
    ...     mha.active_isa()
    'baseline'
    """
    return _core.active_isa()


def last_used_isa() -> str:
    """Return the name of the instruction set of this thread's latest call; an empty string before the first call.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.ones((3, 8), np.float32)
    >>> out = mha.scaled_dot_product_attention(x, x, x)
    >>> mha.last_used_isa() == mha.active_isa()
    True
    """
    return _core.last_used_isa()


def num_threads() -> int:
    """Return the largest number of threads of a call without ``num_threads``; a small call uses fewer.

    It comes from `set_num_threads` or `use_threads`, or from ``OMP_NUM_THREADS``, or from the affinity mask and the CPU
    quota of the container. It is at most ``OMP_THREAD_LIMIT``, and 1 in a forked process.

    Examples
    --------
    >>> import mha_native as mha
    >>> mha.num_threads() >= 1
    True
    """
    return _core.num_threads()


_isas: Choices[str] = Choices(_core.set_isa)
_threads: Choices[int] = Choices(_core.set_num_threads)


class _Use:
    """A choice for the whole process, which a ``with`` statement ends."""

    _choices: Choices[Any]

    def __init__(self, value: Any) -> None:
        with in_the_name_of(type(self).__name__):
            self._made: Choice[Any] | None = self._choices.make(value, self)
        self._value = value
        self._entered: list[Choice[Any]] = []

    def __enter__(self) -> None:
        choice = self._choices.make(self._value, self) if self._made is None else self._made
        self._made = None
        self._entered.append(choice)
        self._choices.enter(choice)

    def __exit__(self, *exception: object) -> None:
        self._choices.end(self._entered.pop())


class use_isa(_Use):
    """Choose the instruction set of the whole process; in a ``with`` statement, until its end.

    Parameters
    ----------
    name : str or None
        One of `available_isas`. None restores the default: ``MHA_NATIVE_ISA`` of the environment, or the best one.

    Notes
    -----
    If several threads or tasks choose, the newest choice that has not ended counts, for all of them. A choice made
    inside a ``with`` block ends with the block. Blocks may overlap and end in any order; after the last one, the choice
    from outside the blocks counts again.

    A call computes with the instruction set that was chosen when it began. A call of a model, such as
    `SentenceEncoder.encode`, keeps it for all its batches and tokens, and a `Batcher` for as long as it lives.

    Examples
    --------
    >>> import mha_native as mha
    >>> with mha.use_isa("baseline"):
    ...     mha.active_isa()
    'baseline'
    """

    _choices = _isas

    def __init__(self, name: str | None) -> None:
        if isinstance(name, str) and name and name not in _core.built_isas():
            available = ", ".join(available_isas())
            raise ValueError(f"use_isa: name: unknown instruction set {shown(name)}; available: {available}")
        super().__init__(name)


def set_num_threads(n: int | None) -> None:
    """Set the number of threads of calls without ``num_threads``, in the whole process.

    Inside a ``with`` block of `use_threads`, the number counts until the end of the block. `use_threads` says which
    number counts if several threads choose one.

    Parameters
    ----------
    n : int or None
        At least 1. None restores the default: ``OMP_NUM_THREADS``, or the processors that this process may use.

    Examples
    --------
    >>> import mha_native as mha
    >>> mha.set_num_threads(2)
    >>> mha.num_threads()
    2
    >>> mha.set_num_threads(None)
    """
    _threads.make(n)


class use_threads(_Use):
    """Set the number of threads as `set_num_threads` does; in a ``with`` statement, until its end.

    Parameters
    ----------
    n : int or None
        As in `set_num_threads`.

    Notes
    -----
    Numbers that several threads or tasks choose count as the instruction sets of `use_isa` do: the newest one that has
    not ended, for all of them.

    Examples
    --------
    >>> import mha_native as mha
    >>> with mha.use_threads(1):
    ...     mha.num_threads()
    1
    """

    _choices = _threads

    def __init__(self, n: int | None) -> None:
        super().__init__(n)


class CallThreads(int):
    """The argument ``num_threads`` of all steps of one call, with the index of the instruction set for all of them."""

    isa: int


def threads_of_call(function: str, num_threads: int | None) -> int:
    """Return the checked number of threads, or the default of now, with the instruction set of now.

    A call of several steps passes it to each of them, so that their results fit each other. The core reads `isa`.
    """
    if isinstance(num_threads, CallThreads):  # of a call that this one is a step of
        return num_threads
    given = None if num_threads is None else checked_integer(function, "num_threads", num_threads, 1)
    threads = CallThreads(_core.num_threads() if given is None else given)
    threads.isa = _core.built_isas().index(_core.active_isa())
    return threads


def show_config(file: TextIO | None = None) -> None:
    """Print the facts for a bug report: versions, instruction sets, threads, and the reasons for both.

    Parameters
    ----------
    file : writable text file, default ``sys.stdout``

    Examples
    --------
    >>> import io
    >>> import mha_native as mha
    >>> text = io.StringIO()
    >>> mha.show_config(text)
    >>> mha.active_isa() in text.getvalue()
    True
    """
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"show_config: file must be a writable text file; got {name_of_type(file)}")
    found = configuration()
    lines = {
        "mha_native": f"{found['mha_native']}, built with {found['compiler']}",
        "Python": f"{found['python']}, NumPy {found['numpy']}, {found['machine']} {found['system']}",
        "processor": found["processor"],
        "instruction sets built": ", ".join(found["isas"]),
        "  this machine runs": ", ".join(found["available_isas"]),
        "  in use": f"{found['active_isa'] or 'none'} ({found['active_isa_reason']})",
        **{f"  {name}": reason for name, reason in found["isas"].items()},
        "threads": f"{found['threads']} ({found['threads_reason']})",
        "OpenMP runtime": ", ".join(found["openmp_runtimes"]) or "none loaded",
        "dtypes": ", ".join(found["dtypes"]),
    }
    for label, text in lines.items():
        print(f"{label:<24}{text}", file=file)


def configuration() -> dict[str, Any]:
    """Return the facts of `show_config` as str, int, list and dict. ``isas`` maps each built set to its status."""
    try:
        active, reason = _core.active_isa(), _core.active_isa_reason()
    except ValueError as error:  # MHA_NATIVE_ISA is unknown or does not run here: show the rest
        active, reason = None, str(error)
    return {
        "mha_native": _core.__version__,
        "compiler": _core.compiler,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "isas": {name: _core.isa_reason(name) for name in _core.built_isas()},
        "available_isas": available_isas(),
        "active_isa": active,
        "active_isa_reason": reason,
        "threads": _core.num_threads(),
        "threads_reason": _core.num_threads_reason(),
        "openmp_runtimes": _openmp_runtimes(),
        "dtypes": list(_core.dtypes()),
    }


def _processor() -> str:
    """Return the name of the processor from the operating system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return names[0] if names else platform.processor() or "unknown"


def _openmp_runtimes() -> list[str]:
    """Return the paths of all OpenMP runtimes in this process, also of other libraries: two may disturb each other."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
    except OSError:  # not Linux
        return []
    return sorted(path for path in paths if path.rpartition("/")[2].startswith(("libgomp", "libomp", "libiomp")))
