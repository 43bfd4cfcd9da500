"""Audio from arrays and files: float32 samples of one channel at one rate, whole or in blocks of flat memory."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..functions.arrays import Tensor, to_numpy
from ..functions.messages import name_of_type, shown
from ..functions.needed_packages import needed_package, pip_install
from ..functions.scalars import checked_boolean, checked_integer, checked_real

Samples: TypeAlias = NDArray[np.float32]  # [samples]
Channels: TypeAlias = NDArray[np.float32]  # [samples, channels]

# A path, a file object of bytes, or an array.
AudioSource: TypeAlias = "str | PathLike[str] | BinaryIO | Tensor"

# From a path and what closes the file to its rate and its blocks.
OpenFile: TypeAlias = "Callable[[str, ExitStack], tuple[int, Iterator[Channels]]]"

SAMPLING_RATE = 16_000  # of every Whisper model

_BLOCK = 1 << 17  # samples of a channel that are decoded at once: 0.5 MB
_MOST_CHANNELS = 64  # an array with more has its axes the other way round
_MOST_RATE = 10_000_000


class Audio(Protocol):
    """Samples that are read in pieces, forward."""

    @property
    def length(self) -> int:
        """The number of samples. The first use may decode the source once."""

    def read(self, start: int, stop: int) -> Samples:
        """Return samples, [at most stop - start]; fewer at the end. A start before the latest one may decode again."""


def decode_audio(
    source: AudioSource,
    sampling_rate: int = SAMPLING_RATE,
    split_stereo: bool = False,
    *,
    source_rate: int | None = None,
) -> Samples | tuple[Samples, Samples]:
    """Return the samples of a file or an array, with one channel, at `sampling_rate`.

    Parameters
    ----------
    source : path, file object, or [samples] or [samples, channels]
        Files are read by soundfile (WAV, FLAC, OGG, MP3 and others), and where it cannot, by PyAV if it is installed
        (M4A, video and others). File objects, from their beginning, and pipes are copied to a temporary file.
        Integers of 8 to 32 bits become numbers from -1 to 1.
    sampling_rate : int
        In samples a second. Another rate of the source is resampled by soxr.
    split_stereo : bool
        Return the left and the right channel instead of the mean of all channels.
    source_rate : int, optional
        The rate of an array; default: `sampling_rate`. A file has its own.

    Returns
    -------
    samples : float32 [samples], or two of them

    Raises
    ------
    ValueError
        If the source is no audio, is damaged, or has a number that is not finite.
    TypeError
        If the source, or its dtype, is unsupported.
    ImportError
        If a package is missing.
    OSError
        If the file cannot be read.

    See Also
    --------
    audio_blocks : The same in blocks, for hours of audio.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.speech import decode_audio
    >>> decode_audio(np.array([[0, 16384], [32767, 32767]], np.int16))
    array([0.25     , 0.9999695], dtype=float32)
    """
    if not checked_boolean("decode_audio", "split_stereo", split_stereo):
        return open_audio(source, sampling_rate, source_rate=source_rate).whole()
    with ExitStack() as stack:
        kept, _ = _path_or_array("decode_audio", source, stack)  # read twice, also a pipe
        left, right = (_Recording(kept, sampling_rate, source_rate, side, "decode_audio").whole() for side in (0, 1))
    return left, right


def audio_blocks(
    source: AudioSource,
    seconds: float = 30.0,
    sampling_rate: int = SAMPLING_RATE,
    *,
    source_rate: int | None = None,
) -> Iterator[Samples]:
    """Return the samples of `decode_audio` in blocks of `seconds`, the last one shorter. Memory does not grow.

    Parameters
    ----------
    source : path, file object, or [samples] or [samples, channels]
        As in `decode_audio`.
    seconds : float
        Of each block.
    sampling_rate : int
        In samples a second.
    source_rate : int, optional
        The rate of an array; default: `sampling_rate`.

    Returns
    -------
    blocks : iterator of float32 [samples]

    Raises
    ------
    TypeError, ValueError, ImportError, OSError
        As `decode_audio`, also while the iterator runs.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.speech import audio_blocks
    >>> [len(block) for block in audio_blocks(np.zeros(40_000, np.float32), seconds=1)]
    [16000, 16000, 8000]
    """
    audio = open_audio(source, sampling_rate, source_rate=source_rate, function="audio_blocks")
    size = round(checked_real("audio_blocks", "seconds", seconds) * sampling_rate)
    if size < 1:
        raise ValueError(f"audio_blocks: seconds must be at least one sample; got {shown(seconds)}")
    return _pieces(audio, size)


def open_audio(
    source: AudioSource,
    sampling_rate: int = SAMPLING_RATE,
    *,
    source_rate: int | None = None,
    function: str = "decode_audio",
) -> _Recording:
    """Return the samples of `decode_audio` for reading in pieces. `function` is the name in error messages."""
    return _Recording(source, sampling_rate, source_rate, None, function)


def _pieces(audio: Audio, size: int) -> Iterator[Samples]:
    start = 0
    while len(piece := audio.read(start, start + size)):
        yield piece
        start += size


class _Recording:
    """Samples of one source, decoded as they are read."""

    def __init__(
        self, source: AudioSource, sampling_rate: int, source_rate: int | None, channel: int | None, function: str
    ) -> None:
        target = checked_integer(function, "sampling_rate", sampling_rate, 1, _MOST_RATE)
        stack = ExitStack()
        weakref.finalize(self, stack.close)  # removes a copy with the recording
        kept, label = _path_or_array(function, source, stack)
        self._array: Samples | None = None
        self._length: int | None = None
        # Nothing that decodes refers to the recording: a copy would stay until garbage is collected.
        self._decode: Callable[[], Iterator[Samples]]
        if isinstance(kept, str):
            if source_rate is not None:
                raise TypeError(f"{function}: source_rate is the rate of an array; a file has its own")
            self._decode = _File(function, kept, label, target, channel).decode
        else:
            array = _checked_array(function, kept)
            rate = target if source_rate is None else checked_integer(
                function, "source_rate", source_rate, 1, _MOST_RATE
            )  # fmt: skip
            if rate == target and array.ndim == 1 and array.dtype == np.float32:
                self._array, self._length = _finite(function, array, 0), len(array)
            self._decode = lambda: _resampled(function, _blocks_of(array), rate, sampling_rate, channel)
        self._restart()

    def whole(self) -> Samples:
        """Return all samples."""
        if self._array is not None:
            return self._array
        blocks = list(self._decode())
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    @property
    def length(self) -> int:
        """The number of samples. The first use may decode the source once."""
        if self._length is None:
            self._length = sum(map(len, self._decode()))
        return self._length

    def read(self, start: int, stop: int) -> Samples:
        """Return samples, [at most stop - start]; fewer at the end. A start before the latest one decodes again."""
        if self._array is not None:
            return self._array[start:stop]
        if start < self._first:
            self._restart()
        held, count = self._held, sum(map(len, self._held))
        while self._first + count < stop and (block := next(self._blocks, None)) is not None:
            held.append(block)
            count += len(block)
            while held and self._first + len(held[0]) <= start:
                self._first += len(held[0])
                count -= len(held.pop(0))
        if self._first + count < stop:
            self._length = self._first + count
        if not held:
            return np.zeros(0, np.float32)
        if len(held) > 1:
            held[:] = [np.concatenate(held)]
        piece = held[0][max(start - self._first, 0) : max(stop - self._first, 0)]
        drop = min(max(start - self._first, 0), len(held[0]))
        held[0] = held[0][drop:]
        self._first += drop
        return piece

    def _restart(self) -> None:
        self._blocks = iter(()) if self._array is not None else self._decode()
        self._held: list[Samples] = []
        self._first = 0  # of the samples that are held


class _File:
    """A file, whose samples are decoded at a rate. `function` and `label` are names in error messages."""

    def __init__(self, function: str, path: str, label: str, rate: int, channel: int | None) -> None:
        self._name, self._path, self._label, self._rate, self._channel = function, path, label, rate, channel

    def decode(self) -> Iterator[Samples]:
        """Yield the samples of one channel, or the mean of all."""
        if not Path(self._path).stat().st_size:
            raise ValueError(f"{self._name}: source must be a recording; {self._label} is empty")
        with ExitStack() as stack:
            rate, blocks = self._opened(stack)
            yield from _resampled(self._name, blocks, rate, self._rate, self._channel)

    def _opened(self, stack: ExitStack) -> tuple[int, Iterator[Channels]]:
        """Return the rate and the samples of the file, by the first package that knows its format."""
        reasons, missing = [], []
        for package, opener in (("soundfile", _by_soundfile), ("av", _by_av)):
            try:
                with needed_package(self._name, package, "speech"):
                    open_file, errors = opener()
            except ImportError as error:
                missing.append(error)
                continue
            try:
                rate, blocks = open_file(self._path, stack)
            except errors as error:
                reasons.append(f"{package}: {_sentence(error)}")
                continue
            return rate, self._with_damage_named(blocks, errors, rate)
        if not reasons:
            raise missing[0]
        if missing:
            reasons.append(f"av, which reads more formats, is not installed: {pip_install('av')}")
        raise ValueError(
            f"{self._name}: source must be a recording; no package reads {self._label} ({'; '.join(reasons)})"
        )

    def _with_damage_named(self, blocks: Iterator[Channels], errors: Any, rate: int) -> Iterator[Channels]:
        count = 0
        try:
            for block in blocks:
                yield block
                count += len(block)
        except errors as error:
            at = f"somewhere after {count / rate:.1f} s of audio"
            raise ValueError(f"{self._name}: {self._label} is damaged {at}: {_sentence(error)}") from error


def samples_of_blocks(
    function: str, blocks: Iterable[Tensor], source_rate: int, sampling_rate: int = SAMPLING_RATE
) -> Iterator[Samples]:
    """Yield blocks of any dtype and number of channels as samples of one channel at `sampling_rate`."""
    checked = (part for block in blocks for part in _blocks_of(_checked_array(function, block)))
    return _resampled(function, checked, source_rate, sampling_rate)


def _resampled(
    function: str, blocks: Iterator[Channels], rate: int, target: int, channel: int | None = None
) -> Iterator[Samples]:
    """Yield one channel of finite samples, or the mean of all, at the rate `target`."""
    stream = None
    if rate != target:
        with needed_package(function, "soxr", "speech"):
            import soxr
        stream = soxr.ResampleStream(rate, target, 1, dtype="float32")
    count = 0
    for block in blocks:
        samples = _finite(function, _mixed(function, block, channel), count)
        count += len(samples)
        if stream is not None:
            samples = stream.resample_chunk(samples)
        if len(samples):
            yield samples
    if stream is not None and len(samples := stream.resample_chunk(np.zeros(0, np.float32), last=True)):
        yield samples


def _mixed(function: str, block: Channels, channel: int | None) -> Samples:
    channels = block.shape[1]
    if channel is not None:
        if channels > 2:
            raise ValueError(f"{function}: split_stereo needs one or two channels; got {channels}")
        return np.ascontiguousarray(block[:, min(channel, channels - 1)])
    return block[:, 0] if channels == 1 else block.mean(axis=1)


def _finite(function: str, samples: Samples, first: int) -> Samples:
    if not np.isfinite(samples).all():
        at = int(np.argmin(np.isfinite(samples)))
        raise ValueError(f"{function}: source must have finite samples; sample {first + at} is {float(samples[at])}")
    return samples


class Joined:
    """Spans of an audio, one after another: speech without the silence between."""

    def __init__(self, audio: Audio, spans: list[tuple[int, int]]) -> None:
        self._audio, self._spans = audio, spans
        lengths = [stop - start for start, stop in spans]
        self._firsts = np.cumsum([0, *lengths]).tolist()  # of each span, and the length of all

    @property
    def length(self) -> int:
        """The number of samples of all spans."""
        return cast(int, self._firsts[-1])

    def read(self, start: int, stop: int) -> Samples:
        """Return samples, [at most stop - start]; fewer at the end."""
        pieces = [
            self._audio.read(begin + max(start - first, 0), begin + min(stop - first, end - begin))
            for (begin, end), first in zip(self._spans, self._firsts, strict=False)
            if first < stop and first + end - begin > start
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _by_soundfile() -> tuple[OpenFile, Any]:
    """Return the function that opens a file, and the errors that it and its blocks raise."""
    import soundfile

    def open_file(path: str, stack: ExitStack) -> tuple[int, Iterator[Channels]]:
        sound = stack.enter_context(soundfile.SoundFile(path))

        def blocks() -> Iterator[Channels]:
            left = sound.frames
            while len(block := sound.read(_BLOCK, dtype="float32", always_2d=True)):
                left -= len(block)
                yield block
            if left > 0 and sound.format != "MP3":  # its length may be an estimate, and decoders skip what is damaged
                raise ValueError(f"{left} samples are missing")

        return sound.samplerate, blocks()

    return open_file, (soundfile.SoundFileError, TypeError, ValueError)  # TypeError: a file .raw, without a header


def _by_av() -> tuple[OpenFile, Any]:
    """Return the function that opens a file, and the errors that it and its blocks raise."""
    import av

    def open_file(path: str, stack: ExitStack) -> tuple[int, Iterator[Channels]]:
        container = stack.enter_context(av.open(path, metadata_errors="ignore"))
        if not container.streams.audio:
            raise ValueError("it has no audio")
        stream = container.streams.audio[0]
        to_planes = av.AudioResampler(format="fltp")

        def blocks() -> Iterator[Channels]:
            for frame in container.decode(stream):
                frame.pts = None
                for planes in to_planes.resample(frame):
                    yield planes.to_ndarray().T

        return stream.rate, blocks()

    return open_file, (av.FFmpegError, ValueError)


def _path_or_array(function: str, source: AudioSource, stack: ExitStack) -> tuple[Any, str]:
    """Return the path of a file, or an array; and a name for messages.

    File objects and pipes are copied to a temporary file. A decoder that called them from C would lose an interrupt.
    """
    if isinstance(source, (str, PathLike)):
        try:
            path = fspath(source)
            label = shown(path)
            if not (Path(path).is_fifo() or Path(path).is_char_device()):
                with open(path, "rb"):  # an OSError before any work
                    return path, label
        except OSError:
            raise
        except Exception as error:  # no text, or no text of the file system
            raise ValueError(f"{function}: source must be a path; got {shown(source)}: {shown(error)}") from None
        with open(path, "rb") as pipe:
            return _copied(pipe, stack), label
    if hasattr(source, "read"):
        if source.seekable():
            source.seek(0)
        return _copied(source, stack), "the file object"
    return source, ""


def _copied(file: Any, stack: ExitStack) -> str:
    folder = tempfile.mkdtemp()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    with open(Path(folder) / "audio", "wb") as copy:
        shutil.copyfileobj(file, copy)
    return copy.name


def _checked_array(function: str, source: Tensor) -> NDArray[Any]:
    array = to_numpy(function, "source", source)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{function}: source must be a path, a file object or an array; got {name_of_type(source)}")
    is_integer = array.dtype.kind in "iu" and array.dtype.itemsize <= 4
    if not (is_integer or array.dtype in (np.float16, np.float32, np.float64)):
        raise TypeError(
            f"{function}: source must have dtype float16, float32, float64 or integers of 8 to 32 bits; "
            f"got {array.dtype}"
        )
    if array.ndim not in (1, 2) or (array.ndim == 2 and not 1 <= array.shape[1] <= _MOST_CHANNELS):
        raise ValueError(
            f"{function}: source must be [samples] or [samples, channels] with 1 to {_MOST_CHANNELS} channels; "
            f"got {list(array.shape)}"
        )
    return array


def _blocks_of(array: NDArray[Any]) -> Iterator[Channels]:
    """Yield an array as float32 from -1 to 1, [samples, channels]."""
    columns = array[:, None] if array.ndim == 1 else array
    half = 2.0 ** (8 * array.dtype.itemsize - 1)  # integers of one sign have their zero there
    for start in range(0, len(columns), _BLOCK):
        block = columns[start : start + _BLOCK]
        if array.dtype.kind == "f":
            yield block.astype(np.float32)
        else:
            yield ((block.astype(np.float64) - (half if array.dtype.kind == "u" else 0)) / half).astype(np.float32)


def _sentence(error: BaseException) -> str:
    # Of soundfile without the repr of the file, and of PyAV without number and path.
    text = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(text.removeprefix("Error : ").split()).rstrip(".") or name_of_type(error)
