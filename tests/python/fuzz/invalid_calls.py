"""Calls with one wrong argument: what is refused must be refused well.

    PYTHONPATH=tests/python/support python tests/python/fuzz/invalid_calls.py [--seed N] [--count N] [--verbose]

Takes valid calls of `catalogue`, changes one argument of each as `mutations.py` says, and looks at what comes out. A
change may leave a call valid. Where it does not, the call must

* raise TypeError, ValueError, MemoryError or RuntimeError, with at most 500 characters, none of them a line break;
* begin with the name of the function that was called, and name the argument: also where memory or a file is missing;
* have written to no array, and changed no cache.

Exits with 1 if one call did not, but for names, of which 99.7 % must be there. Call i of a seed is the same on every
machine. If the process dies, ``--verbose`` shows of which call.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import io
import re
import resource
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import program
from catalogue import CATALOGUE, Arguments
from mutations import Failure, mutant

import mha_native as mha

LEAST_NAMED = 0.997
LONGEST = 500
LONGEST_SECONDS = 60.0

# Beyond what the process has when it begins: huge sizes must be refused before they are paid for.
MEMORY = 4 << 30

MAY_RAISE = (TypeError, ValueError, MemoryError, RuntimeError)

# Arguments that say how much is done. A huge number is no error; the call takes as long as it takes.
COUNTS, MOST_COUNTED = ("num_layers",), 1000
MOST_NUMBERS = 1 << 26  # of an array
TEXTS = ("texts", "prompts", "prompt", "sequences")  # read one by one; an array has the tokens of many

# Arguments that are opened as files.
MODELS = ("model", "model_size_or_path")

# Arguments that a call iterates over, whose own errors pass through.
OF_THE_CALLER = ("texts", "sequences", "blocks", "images")


@dataclass
class Outcome:
    """Of one changed call. `error` is what it raised, `complaints` what is wrong with that."""

    call: str
    error: BaseException | None
    complaints: list[str]
    is_named: bool = True


def outcome_of(seed: int, index: int, verbose: bool = False) -> Outcome:
    rng = np.random.default_rng((seed, index))
    name = list(CATALOGUE)[rng.integers(len(CATALOGUE))]
    function, arguments = CATALOGUE[name](rng)
    argument = list(arguments)[rng.integers(len(arguments))]
    others = [value for each, value in arguments.items() if each != argument]
    names = [argument, *entries_of(arguments[argument])]
    what, arguments[argument] = mutant(rng, arguments[argument], others)
    names += entries_of(arguments[argument])
    call = f"{index}: {name}, {argument} = {what}"
    if is_too_much(name, argument, arguments[argument]):
        return Outcome(call, None, [])
    if verbose:
        print(call, file=sys.stderr, flush=True)
    before = snapshot(function, arguments)
    try:
        function(**arguments)
    except BaseException as error:
        return judge(call, name.split(" ")[0], names, error, before == snapshot(function, arguments))
    return Outcome(call, None, [])


def is_too_much(name: str, argument: str, value: Any) -> bool:
    """Whether a call would only take long: many layers, numbers that the reference reads one by one, or texts."""
    is_large = isinstance(value, np.ndarray) and value.size > MOST_NUMBERS
    is_many = argument in COUNTS and isinstance(value, int) and value > MOST_COUNTED
    return is_many or (is_large and (name.startswith("reference.") or argument in TEXTS))


def entries_of(value: Any) -> list[str]:
    """The names of the entries of a dict, any of which a message may name instead of the argument."""
    return [name for name in value if isinstance(name, str)] if type(value) is dict else []


def judge(call: str, function: str, names: list[str], error: BaseException, is_untouched: bool) -> Outcome:
    outcome = Outcome(call, error, [])
    kinds = MAY_RAISE + (OSError,) * (names[0] in MODELS) + (Failure,) * (names[0] in OF_THE_CALLER)
    if type(error) not in kinds and not isinstance(error, MemoryError | FileNotFoundError):
        outcome.complaints.append(f"{type(error).__name__} came out")
    message = str(error)
    is_of_python = isinstance(error, OSError)  # whose message has the whole path
    if not is_of_python and (len(message) > LONGEST or "\n" in message):
        outcome.complaints.append(f"the message has {len(message)} characters, {message.count(chr(10))} line breaks")
    if not is_untouched:
        outcome.complaints.append("an argument was changed")
    if isinstance(error, Failure) or is_signature_error(error):
        return outcome  # of the caller, or of Python
    is_named = any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in names)
    outcome.is_named = is_named and message.startswith((f"{function}: ", f"{function}, attention to memory: "))
    return outcome


def is_signature_error(error: BaseException) -> bool:
    """Whether Python itself refused the call, for a name that is missing or unexpected."""

    pattern = r"[\w.<>]+\(\) (missing|got an unexpected|got multiple|takes)"
    return isinstance(error, TypeError) and re.match(pattern, str(error)) is not None


def snapshot(function: Any, arguments: Arguments) -> list[Any]:
    """All that a refused call must leave as it is."""
    owner = getattr(function, "__self__", None)
    return [_state(x) for x in (*arguments.values(), owner)]


def _state(x: Any) -> Any:
    if type(x) is np.ndarray:
        return x.tobytes() if x.dtype != object and x.size < 100_000 else x.shape
    if isinstance(x, mha.KVCache | mha.PagedKVCache):
        return [array.tobytes() for array in x.state_dict().values()]
    return [_state(each) for each in x] if type(x) in (list, tuple) else None


def run(seed: int, count: int, first: int = 0, verbose: bool = False) -> list[Outcome]:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    outcomes = []
    with contextlib.redirect_stdout(io.StringIO()):
        for index in range(first, first + count):
            faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)  # a call in the core cannot be interrupted
            outcomes.append(outcome_of(seed, index, verbose))
    faulthandler.cancel_dump_traceback_later()
    return outcomes


def report(outcomes: list[Outcome]) -> bool:
    """Prints what came of the calls; whether all is well."""
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    bad = [outcome for outcome in refused if outcome.complaints]
    nameless = [outcome for outcome in refused if not outcome.is_named]
    kinds = collections.Counter(type(outcome.error).__name__ for outcome in refused)
    for outcome in bad:
        print(f"BAD {outcome.call}: {'; '.join(outcome.complaints)}: {_shown(outcome.error)}")
    for outcome in nameless:
        print(f"NAMELESS {outcome.call}: {_shown(outcome.error)}")
    named = 1 - len(nameless) / max(len(refused), 1)
    print(f"{len(outcomes)} calls: {len(outcomes) - len(refused)} accepted, {len(refused)} refused ({_counts(kinds)})")
    print(f"{len(bad)} badly; {100 * named:.2f} % of messages name the function and the argument")
    return not bad and named >= LEAST_NAMED


def _counts(kinds: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _shown(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error)[:300]!r}"


def limit_memory() -> None:
    """Sizes beyond all memory must be refused before they are paid for."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> int:
    options = program.options("Call functions with one wrong argument.", count=1000)
    limit_memory()
    return 0 if report(run(options.seed, options.count, options.first, options.verbose)) else 1


if __name__ == "__main__":
    sys.exit(main())
