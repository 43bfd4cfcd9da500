"""Models of speech: recordings that take turns in the thread of their model, a window each."""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..functions.cancellation import CancellationToken
from ..functions.messages import shown
from ..functions.needed_packages import needed_package
from ..speech import Segment, TranscriptionInfo, WhisperModel, audio_blocks
from .config import SPEECH, Config, Model
from .engines import OPENERS, Engine
from .forms import TemporaryFile

SAMPLING_RATE = 16_000
_BLOCK_SECONDS = 30.0  # of a recording that are decoded in a turn
_MOST_OPEN = 4  # recordings that take turns; later ones wait until one of them ends


class RecordingError(ValueError):
    """A recording that is none, is damaged, or is too long."""


class Transcript(NamedTuple):
    """The text of a recording, the `monotonic` time when it came, and the seconds that it waited and was computed."""

    segments: list[Segment]
    info: TranscriptionInfo
    begin: float
    queue_seconds: float
    compute_seconds: float

    @property
    def text(self) -> str:
        return text_of(self.segments)


def text_of(segments: list[Segment]) -> str:
    """Return the text of segments, without space around it."""
    return "".join(segment.text for segment in segments).strip()


class TranscriptRequest(Future[Transcript]):
    """A recording in the queue of a model. `cancel` ends its work, also while it is computed."""

    def __init__(
        self,
        recording: TemporaryFile,
        options: dict[str, Any],
        most_seconds: float,
        on_segment: Callable[[Segment], None] | None,
    ) -> None:
        super().__init__()
        self.recording, self.options, self.most_seconds, self.on_segment = recording, options, most_seconds, on_segment
        self.begin = monotonic()
        self.queue_seconds, self.compute_seconds = 0.0, 0.0
        self.num_seconds, self.num_done = 0.0, 0.0  # of the recording: as far as it is decoded, and transcribed
        self.token = CancellationToken()
        self.add_done_callback(lambda _: self.token.cancel() if self.cancelled() else None)


class SpeechEngine(Engine):
    """A model of speech. Its thread computes a window of each recording in turn."""

    kind = SPEECH

    def __init__(self, name: str, model: WhisperModel) -> None:
        with needed_package(name, "soundfile", "speech"):  # now, and not with the first recording
            import soundfile  # noqa: F401
        with needed_package(name, "soxr", "speech"):
            import soxr  # noqa: F401
        super().__init__(name)
        self.model = model
        self._waiting: deque[TranscriptRequest] = deque()
        self._open: deque[tuple[TranscriptRequest, Iterator[None]]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._seconds, self._audio_seconds, self._num_tokens = 0.0, 0.0, 0
        self._thread = threading.Thread(target=self._run, name="mha_native.server.speech", daemon=True)
        self._thread.start()

    @property
    def max_length(self) -> None:
        return None

    @property
    def weight_dtype(self) -> str:
        return str(self.model.model.weight_dtype)

    @property
    def languages(self) -> list[str]:
        """The codes of the languages of the model."""
        return self.model.supported_languages

    @property
    def can_translate(self) -> bool:
        return self.model.model.multilingual

    def submit(
        self,
        recording: TemporaryFile,
        options: dict[str, Any],
        most_seconds: float,
        on_segment: Callable[[Segment], None] | None = None,
    ) -> TranscriptRequest:
        """Return the future transcript of a recording of at most `most_seconds`, which is removed at its end, by the
        options of `WhisperModel.transcribe`. `on_segment` is called in the thread of the model."""
        request = TranscriptRequest(recording, options, most_seconds, on_segment)
        with self._changed:
            if self._is_closed:
                raise CancelledError
            self._waiting.append(request)
            self._changed.notify()
        return request

    def _run(self) -> None:
        """Let recordings take turns until the engine is closed."""
        while True:
            with self._changed:
                while not (self._is_closed or self._waiting or self._open):
                    self._changed.wait()
                if self._is_closed:
                    break
                while self._waiting and len(self._open) < _MOST_OPEN:
                    request = self._waiting.popleft()
                    request.queue_seconds = monotonic() - request.begin
                    self._open.append((request, self._turns(request)))
                request, turns = self._open[0]
            goes_on = self._takes_turn(request, turns)
            with self._changed:
                self._open.rotate(-1)
                if not goes_on:
                    self._open.pop()
        for request in [*self._waiting, *(request for request, _ in self._open)]:
            request.cancel()
            request.recording.close()

    def _takes_turn(self, request: TranscriptRequest, turns: Iterator[None]) -> bool:
        """Compute one turn of a recording. Return whether there is another one."""
        begin = monotonic()
        try:
            with request.token:
                if not request.cancelled() and next(turns, self) is not self:
                    return True
        except CancelledError:
            request.cancel()
        except BaseException as error:
            _resolve(request.set_exception, error)
        finally:
            seconds = monotonic() - begin
            request.compute_seconds += seconds
            self._seconds += seconds
        turns.close()  # type: ignore[attr-defined]
        request.recording.close()
        return False

    def _turns(self, request: TranscriptRequest) -> Iterator[None]:
        """Decode a recording, and transcribe it, in turns."""
        samples = TemporaryFile()
        try:
            try:
                for block in audio_blocks(request.recording.path, _BLOCK_SECONDS):
                    samples.file.write(block.data)
                    request.num_seconds += len(block) / SAMPLING_RATE
                    if request.num_seconds > request.most_seconds:
                        raise ValueError(f"source must have at most {request.most_seconds:g} s of sound")
                    yield
                samples.file.flush()
                segments, info = self.model.transcribe(_mapped(samples), **request.options)
            except (TypeError, ValueError) as error:
                raise _of_recording(error, request.recording.path) from error
            request.recording.close()
            found: list[Segment] = []
            for segment in segments:
                found.append(segment)
                self._audio_seconds += max(segment.end - request.num_done, 0)
                self._num_tokens += len(segment.tokens)
                request.num_done = max(segment.end, request.num_done)
                if request.on_segment is not None:
                    request.on_segment(segment)
                yield
            self._audio_seconds += max(info.duration - request.num_done, 0)
            request.num_done = info.duration
            times = request.begin, request.queue_seconds, request.compute_seconds
            _resolve(request.set_result, Transcript(found, info, *times))
        finally:
            samples.close()

    def warm_up(self) -> None:
        segments, _ = self.model.transcribe(np.zeros(SAMPLING_RATE // 10, np.float32), language="en", temperature=0)
        for _ in segments:
            pass

    def waiting_seconds(self) -> float:
        """Return the seconds of sound that are known and not transcribed yet."""
        with self._changed:
            requests = [*self._waiting, *(request for request, _ in self._open)]
        return sum(max(request.num_seconds - request.num_done, 0) for request in requests)

    def retry_seconds(self) -> int:
        speed = self._audio_seconds / self._seconds if self._seconds else math.nan
        seconds = self.waiting_seconds() / speed if speed > 0 else 1
        return min(max(math.ceil(seconds), 1), 60)

    def queued(self) -> tuple[int, int]:
        with self._changed:
            return len(self._waiting), len(self._open)

    @property
    def tokens_per_second(self) -> float:
        return self._num_tokens / self._seconds if self._num_tokens else math.nan

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            for request in [*self._waiting, *(request for request, _ in self._open)]:
                request.cancel()
            self._changed.notify()
        self._thread.join()


def open_speech(name: str, settings: Model, config: Config) -> SpeechEngine:
    """Open a model of speech in the files of transformers or CTranslate2."""
    if settings.dtype != "float32":
        raise ValueError(f"{settings.path}: dtype must be float32 for a model of speech; got {settings.dtype}")
    threads = 0 if config.num_threads is None else config.num_threads
    model = WhisperModel(settings.path, cpu_threads=threads, weight_dtype=settings.weight_dtype)
    return SpeechEngine(name, model)


OPENERS[SPEECH] = open_speech


def _of_recording(error: Exception, path: str) -> RecordingError:
    """Return the error of a recording, without names of the library and of the disk."""
    message = str(error).replace(shown(path), "the file").replace(path, "the file")
    return RecordingError(message.removeprefix(f"{audio_blocks.__name__}: ").removeprefix("source "))


def _mapped(samples: TemporaryFile) -> NDArray[np.float32]:
    if not samples.file.tell():
        return np.zeros(0, np.float32)
    return np.memmap(samples.path, np.float32, "r")


def _resolve(resolve: Callable[[Any], None], value: Any) -> None:
    """Set the result or the error of a request, unless it was cancelled."""
    with contextlib.suppress(InvalidStateError):
        resolve(value)
