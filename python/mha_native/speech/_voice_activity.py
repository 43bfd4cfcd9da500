"""The spans of a recording in which somebody speaks, and the times of text from which silence was left out.

Silero's network decides for each 32 ms, computed by ONNX Runtime; or, asked for by name, a rule about energies does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of, shown
from ..functions.needed_packages import needed_package, pip_install
from ..functions.scalars import checked_real
from ._audio import SAMPLING_RATE, Audio, AudioSource, open_audio

Probabilities: TypeAlias = NDArray[np.float32]  # [windows]

WINDOW = 512  # samples, 32 ms
_CONTEXT = 64  # samples before a window that the network sees, too
_STATE = 128  # of its LSTM

_BLOCK = 1024  # windows that are judged at once: 32 s, 2 MB

# Silence of this length may end a span that gets too long, in samples.
_SHORT_SILENCE = SAMPLING_RATE * 98 / 1000
_HYSTERESIS, _LEAST_THRESHOLD = 0.15, 0.01

# The files of the network in packages, one call for many windows. Where faster-whisper is installed, spans are its own;
# silero-vad has a later version.
_FILES = (("faster_whisper", "assets/silero_vad_v6.onnx"), ("silero_vad", "data/silero_vad_16k_sequence.onnx"))

# Of the rule about energies, in dB of full scale.
_SILENT, _AUDIBLE, _CONTRAST = -100.0, -50.0, 10.0
_QUIET, _LOUD = 10, 95  # percentiles of the windows

METHODS = ("silero", "energy")


@dataclass
class VadOptions:
    """Options of the search for speech.

    Parameters
    ----------
    threshold : float, default 0.5
        A window of 32 ms is speech from this probability on, from 0 to 1.
    neg_threshold : float, optional
        Within speech, a window is silence below this probability; default: `threshold` - 0.15, at least 0.01.
    min_speech_duration_ms : int, default 0
        Spans that are not longer are left out.
    max_speech_duration_s : float, default infinity
        Longer spans are cut, at the last silence of 98 ms if they have one.
    min_silence_duration_ms : int, default 2000
        Silence that ends a span.
    speech_pad_ms : int, default 400
        Added on both sides of each span, up to the middle between two spans.
    method : {"silero", "energy"}
        "silero" is the network, which needs the package onnxruntime, and faster-whisper or silero-vad. "energy"
        compares the energy of each window with the quietest and the loudest ones, without any package, and takes other
        loud sounds for speech.

    See Also
    --------
    speech_spans : Search.

    Examples
    --------
    >>> from mha_native.speech import VadOptions
    >>> VadOptions(min_silence_duration_ms=500).threshold
    0.5
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = math.inf
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400
    method: str = "silero"

    def check(self, function: str) -> None:
        """Raise TypeError or ValueError, in the name of `function`, if an option is out of its range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "method":
                if value not in METHODS:
                    raise ValueError(f"{function}: method must be {' or '.join(METHODS)}; got {shown(value)}")
            elif not (value is None and field.name == "neg_threshold"):
                most = 1.0 if field.name.endswith("threshold") else math.inf
                is_most = most == math.inf and isinstance(value, float) and value == most  # an endless time
                if not (is_most or 0 <= checked_real(function, field.name, value) <= most):
                    rule = "from 0 to 1" if most == 1 else "at least 0"
                    raise ValueError(f"{function}: {field.name} must be {rule}; got {shown(value)}")


def speech_spans(audio: Audio | AudioSource, options: VadOptions | None = None) -> list[tuple[int, int]]:
    """Return the first sample and the end of each span of speech.

    Parameters
    ----------
    audio : path, file object, or array [samples] at 16 kHz
        As for `decode_audio`.
    options : VadOptions, optional

    Returns
    -------
    spans : list of (start, end)
        In rising order, without overlap.

    Raises
    ------
    TypeError, ValueError
        If an option is out of its range, or the recording is damaged.
    ImportError
        If the network or ONNX Runtime is missing.

    See Also
    --------
    VadOptions : The options.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.speech import VadOptions, speech_spans
    >>> sound = np.zeros(160_000, np.float32)
    >>> sound[48_000:96_000] = np.sin(np.arange(48_000) / 10)
    >>> speech_spans(sound, VadOptions(method="energy", speech_pad_ms=0))
    [(47616, 96256)]
    """
    name, options = "speech_spans", VadOptions() if options is None else options
    if not isinstance(options, VadOptions):
        raise TypeError(f"{name}: options must be VadOptions; got {shown(options)}")
    options.check(name)
    judge = _by_silero(name) if options.method == "silero" else _by_energy
    with in_the_name_of(name, source="audio"):
        opened: Any = audio
        if not (hasattr(audio, "read") and hasattr(audio, "length")):
            opened = open_audio(audio, function=name)
        probabilities = judge(_windows(opened))
    return _padded(_found(probabilities, opened.length, options), opened.length, options)


def _windows(audio: Audio) -> Iterator[NDArray[np.float32]]:
    """Yield windows, [windows, 512] at a time; the last one is filled with zeros, and may be all zeros."""
    start = 0
    while True:
        samples = audio.read(start, start + _BLOCK * WINDOW)
        if len(samples) < _BLOCK * WINDOW:
            yield np.pad(samples, (0, WINDOW - len(samples) % WINDOW)).reshape(-1, WINDOW)
            return
        yield samples.reshape(-1, WINDOW)
        start += len(samples)


def _by_energy(blocks: Iterator[NDArray[np.float32]]) -> Probabilities:
    """Return where each window is between the quiet and the loud ones of the recording, from 0 to 1, in dB.

    Without contrast all windows are speech if they are loud enough to hear.
    """
    powers = np.concatenate([np.square(block).mean(axis=1) for block in blocks])
    levels = np.maximum(10 * np.log10(np.maximum(powers, 1e-30)), _SILENT)
    quiet, loud = np.percentile(levels, (_QUIET, _LOUD))
    if loud < _AUDIBLE:
        return np.zeros(len(levels), np.float32)
    if loud - quiet < _CONTRAST:
        return np.ones(len(levels), np.float32)
    shares: Probabilities = np.clip((levels - quiet) / (loud - quiet), 0, 1).astype(np.float32)
    return shares


class _by_silero:
    """Judge windows by the network."""

    def __init__(self, function: str) -> None:
        self._session = _session(function)

    def __call__(self, blocks: Iterator[NDArray[np.float32]]) -> Probabilities:
        """Return the probability of speech in each window."""
        h, c = np.zeros((2, 1, 1, _STATE), np.float32)
        before = np.zeros((1, _CONTEXT), np.float32)
        found = []
        for block in blocks:
            contexts = np.concatenate([before, block[:-1, -_CONTEXT:]])
            before = block[-1:, -_CONTEXT:]
            inputs = {"input": np.concatenate([contexts, block], axis=1), "h": h, "c": c}
            probabilities, h, c = self._session.run(None, inputs)
            found.append(probabilities.reshape(-1))
        return np.concatenate(found)


@lru_cache(maxsize=1)
def _session(function: str) -> Any:
    path = next((path for path in map(_path_in_package, *zip(*_FILES, strict=True)) if path is not None), None)
    if path is None:
        command = pip_install("onnxruntime", "silero-vad", extra="vad")
        raise ImportError(
            f"{function}: the network of method='silero' is in the package silero-vad: {command}; "
            "method='energy' needs no package"
        )
    with needed_package(function, "onnxruntime", "vad"):
        import onnxruntime
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1  # a window needs the one before it
    settings.log_severity_level = 3  # errors
    settings.enable_cpu_mem_arena = False  # memory goes back after each block
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def _path_in_package(package: str, file: str) -> Path | None:
    """Return the path of a file of a package, without importing the package; None if it is not there."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for path in (Path(folder) / file for folder in folders or ()) if path.is_file()), None)


def _found(probabilities: Probabilities, length: int, options: VadOptions) -> list[tuple[int, int]]:
    """Return the spans of speech as the windows begin and end them."""
    low = options.neg_threshold
    low = max(options.threshold - _HYSTERESIS, _LEAST_THRESHOLD) if low is None else low
    shortest = SAMPLING_RATE * options.min_speech_duration_ms / 1000
    padding = SAMPLING_RATE * options.speech_pad_ms / 1000
    longest = SAMPLING_RATE * options.max_speech_duration_s - WINDOW - 2 * padding
    enough = SAMPLING_RATE * options.min_silence_duration_ms / 1000

    spans: list[tuple[int, int]] = []
    start: int | None = None  # of the span that is open
    silence = 0  # where the silence of now began; 0 without
    cut = goes_on = 0  # where the last silence began at which the span may be cut, and where speech went on after it
    for place, probability in zip(range(0, len(probabilities) * WINDOW, WINDOW), probabilities.tolist(), strict=True):
        if probability >= options.threshold:
            if silence:
                silence = 0
                if goes_on < cut:
                    goes_on = place
            if start is None:
                start = place
                continue
        if start is not None and place - start > longest:
            if not cut:
                spans.append((start, place))
                start, silence, goes_on = None, 0, 0
                continue
            spans.append((start, cut))
            start = None if goes_on < cut else goes_on
            silence = cut = goes_on = 0
        if start is not None and probability < low:
            silence = silence or place
            if place - silence > _SHORT_SILENCE:
                cut = silence
            if place - silence >= enough:
                if silence - start > shortest:
                    spans.append((start, silence))
                start, silence, cut, goes_on = None, 0, 0, 0
    if start is not None and length - start > shortest:
        spans.append((start, length))
    return spans


def _padded(spans: list[tuple[int, int]], length: int, options: VadOptions) -> list[tuple[int, int]]:
    """Return the spans with silence on both sides, which two close spans share."""
    padding = SAMPLING_RATE * options.speech_pad_ms / 1000
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    if spans:
        starts[0] = int(max(0, starts[0] - padding))
        ends[-1] = int(min(length, ends[-1] + padding))
    for i in range(len(spans) - 1):
        between = starts[i + 1] - ends[i]
        share = between // 2 if between < 2 * padding else padding
        starts[i + 1] = int(max(0, starts[i + 1] - share))
        ends[i] = int(min(length, ends[i] + share))
    return list(zip(starts, ends, strict=True))


class SpanTimes:
    """Times in a recording, by times in its spans one after another."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._ends = list(accumulate(end - start for start, end in spans))  # of each span, in what was joined
        firsts = [0, *self._ends[:-1]]
        self._left_out = [(start - first) / SAMPLING_RATE for (start, _), first in zip(spans, firsts, strict=True)]

    def index(self, time: float, is_end: bool = False) -> int:
        """Return the span of a time; the end of a span belongs to it if `is_end`, else to the next one."""
        sample = int(time * SAMPLING_RATE)
        if is_end and sample in self._ends:
            return self._ends.index(sample)
        return min(bisect_right(self._ends, sample), len(self._ends) - 1)

    def original(self, time: float, index: int | None = None, is_end: bool = False) -> float:
        """Return the time in the recording, in seconds rounded to 0.01, as a time of the span `index`."""
        return round(self._left_out[self.index(time, is_end) if index is None else index] + time, 2)
