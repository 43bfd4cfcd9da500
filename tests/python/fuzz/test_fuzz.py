"""The fuzzers, each for a few seconds; as `exhaustive` tests for some minutes. And that they see what is wrong."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import CATALOGUE
from invalid_calls import LONGEST, judge, snapshot
from mutations import Failure

import mha_native
import mha_native.interop.onnx
import mha_native.serving
import mha_native.speech
from mha_native import KVCache

HERE = Path(__file__).parent


def _run(program: str, seed: int, count: int) -> None:
    """In a process of its own: one fuzzer limits its memory, and the other would meet our filters of warnings."""
    command = [sys.executable, str(HERE / program), "--seed", str(seed), "--count", str(count)]
    paths = os.pathsep.join([str(HERE.parent / "support"), *filter(None, sys.path)])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3600, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-2000:]}"


def _public_functions() -> set[str]:
    """Functions, classes and methods that take arguments, as messages name them."""
    names = {f"reference.{name}" for name in mha_native.reference.__all__}
    modules = [mha_native, mha_native.interop.onnx, mha_native.models, mha_native.optim, mha_native.serving]
    for module in (*modules, mha_native.speech):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) and inspect.signature(thing).parameters:
                names.add(name)
            elif inspect.isclass(thing) and not issubclass(thing, (tuple, Exception)):
                methods = [
                    (which, x)
                    for which, x in inspect.getmembers(thing, lambda x: inspect.isfunction(x) or inspect.ismethod(x))
                    if x.__module__.startswith("mha_native")  # not of a base class of Python
                ]
                taking = (which for which, x in methods if set(inspect.signature(x).parameters) - {"self"})
                # A method that is another public class's is named as that one's.
                owner = {which: x.__qualname__.split(".")[0] for which, x in methods}
                owner = {which: "KVCache" if x == "TokenCache" else x for which, x in owner.items()}
                own = (which for which in taking if not which.startswith("_"))
                names |= {name} | {f"{owner[w] if owner[w] in module.__all__ else name}.{w}" for w in own}
    # Classes that `from_pretrained`, `encode`, `decoder`, `submit` and `forward_and_record` make.
    made = {"CausalLM", "SentenceEncoder", "Seq2SeqLM", "SparseEncoder", "EncodeRequest", "Request", "Tape"}
    made |= {"BGEM3Encoder", "MultiVectorEncoder", "ImageClassifier", "ImageEncoder", "ImageTextEncoder"}
    # Results of transcripts, and options that a call checks.
    records = {"Segment", "TranscriptionInfo", "TranscriptionOptions", "VadOptions", "VadOptions.check", "Word"}
    without_arguments = {"CancellationToken"}
    return names - made - records - without_arguments - {"SpeechSeq2Seq", "EncodedSpeech", "SpeechDecoder"}


def test_the_catalogue_has_all_that_is_public() -> None:
    assert _public_functions() == {name.split(" ")[0] for name in CATALOGUE}


def test_invalid_calls() -> None:
    _run("invalid_calls.py", 0, 600)


def test_valid_calls() -> None:
    _run("valid_calls.py", 0, 60)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_invalid_calls(seed: int) -> None:
    _run("invalid_calls.py", seed, 5000)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_valid_calls(seed: int) -> None:
    _run("valid_calls.py", seed, 1250)


@pytest.mark.parametrize(
    ("error", "is_untouched", "complaint"),
    [
        (TypeError("f: x must be an array"), True, None),
        (MemoryError("could not allocate 8 bytes"), True, None),
        (TypeError("f() missing 1 required positional argument: 'x'"), True, None),
        (KeyError("x"), True, "KeyError came out"),
        (OverflowError("f: x"), True, "OverflowError came out"),
        (Failure("f: x"), True, "Failure came out"),
        (ValueError("f: x" + LONGEST * " "), True, "characters"),
        (ValueError("f: x\n"), True, "line breaks"),
        (ValueError("f: x"), False, "an argument was changed"),
    ],
)
def test_what_is_refused_badly_is_found(error: Exception, is_untouched: bool, complaint: str | None) -> None:
    found = judge("call", "f", ["x"], error, is_untouched).complaints
    assert (found == []) if complaint is None else (complaint in found[0]), found


@pytest.mark.parametrize(
    ("message", "is_named"),
    [("f: x must be 3", True), ("f: outs[0] [2], x [3]", True), ("g: x", False), ("f: xs", False), ("x: f", False)],
)
def test_names_are_looked_for(message: str, is_named: bool) -> None:
    assert judge("call", "f", ["x"], ValueError(message), True).is_named == is_named


@pytest.mark.parametrize("kind", [MemoryError, OSError])
def test_errors_of_memory_and_files_need_names_too(kind: type[Exception]) -> None:
    assert not judge("call", "f", ["model"], kind("could not allocate 8 bytes"), True).is_named
    assert judge("call", "f", ["model"], kind("f: no room for model 8"), True).is_named


def test_a_change_is_seen() -> None:
    cache, array = KVCache(1, 1, 4, 2), np.zeros(3)
    arguments: dict[str, Any] = {"cache": cache, "caches": [cache], "out": array, "name": "x"}
    before = snapshot(len, arguments)
    assert snapshot(len, arguments) == before
    array[1] = 1
    after = snapshot(len, arguments)
    assert after != before
    cache.append(np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 2), np.float32))
    assert snapshot(len, arguments) != after
