"""The command ``transcribe``: the text of recordings, or subtitles for them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..functions.dtypes import WEIGHT_FORMATS
from ..functions.progress import Progress
from ..speech import BatchedInferencePipeline, Segment, TranscriptionInfo, WhisperModel
from ..speech._voice_activity import METHODS
from ..speech._writers import WRITERS, Layout
from .errors import UserError, complain, errors_of_files
from .model_calls import loaded
from .output import Write, refuse_to_replace, report, write_at_once, written
from .shared_arguments import count, names_of_options

about = "text of recordings, or subtitles for them, by a model of speech"

# Options of WhisperModel.transcribe: their types and metavars, and their help.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "language": (str, "CODE", "the language that is spoken, such as en; default: detected"),
    "task": (str, "TASK", "transcribe (default), or translate to English"),
    "beam_size": (int, "N", "beams of the search; default: 5; 1 takes the most probable token"),
    "best_of": (int, "N", "texts that are drawn at a temperature above 0; default: 5"),
    "temperature": (float, "T", "temperature of the sampling; default: 0, and after a failure 0.2 to 1"),
    "initial_prompt": (str, "TEXT", "text before the recording: names, spelling, style"),
    "hotwords": (str, "TEXT", "words that are likely in the recording"),
    "clip_timestamps": (str, "S,S,...", "seconds where parts begin and end"),
    "no_speech_threshold": (float, "P", "a window is silent above this probability; default: 0.6"),
    "hallucination_silence_threshold": (
        float,
        "S",
        "skip so much silence around doubtful words",
    ),
}
_FLAGS = {
    "word_timestamps": "find the times of words, for subtitles and JSON",
    "vad_filter": "transcribe only where somebody speaks",
    "multilingual": "detect the language of each window",
}
_LAYOUT = {
    "max_line_width": "characters of a line",
    "max_line_count": "lines of a subtitle; with --max-line-width, segments are joined",
    "max_words_per_line": "words of a subtitle",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = "a recording; - reads standard input. WAV, FLAC, OGG and MP3, and with PyAV M4A, video and others"
    parser.add_argument("files", metavar="FILE", nargs="+", help=files)
    where = "a directory of CTranslate2 or transformers, a size such as tiny.en, or the name of a model of Hugging Face"
    parser.add_argument("--model", metavar="DIR", required=True, help=where)
    stored = "storage of the weights; default: %(default)s"
    parser.add_argument("--weight-dtype", choices=("float32", *WEIGHT_FORMATS), default="float32", help=stored)
    form = "format of the text; default: the ending of --output, else txt"
    parser.add_argument("--output-format", choices=tuple(WRITERS), help=form)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--output", metavar="PATH", help="the text of one recording; default: standard output")
    output.add_argument("--output-dir", metavar="DIR", help="a folder for a file with the name of each recording")
    of_text = parser.add_argument_group("the text")
    for name, (kind, metavar, about) in _OPTIONS.items():
        of_text.add_argument(_option(name), metavar=metavar, type=kind, help=about)
    for name, about in _FLAGS.items():
        of_text.add_argument(_option(name), action="store_true", help=about)
    how = "how speech is found: silero (default), by a network, or energy, by loudness"
    of_text.add_argument("--vad-method", choices=METHODS, help=how)
    batch = "windows that are transcribed at once, found by the voice-activity filter; default: one after another"
    of_text.add_argument("--batch-size", metavar="N", type=count, help=batch)
    of_lines = parser.add_argument_group("subtitles, with --word-timestamps")
    for name, about in _LAYOUT.items():
        of_lines.add_argument(_option(name), metavar="N", type=count, help=about)
    of_lines.add_argument("--highlight-words", action="store_true", help="underline each word while it is spoken")


def run(options: argparse.Namespace) -> int:
    """Transcribe each recording. A failure leaves the output of the recording as it was, and exit code 2."""
    form = options.output_format or Path(options.output or "").suffix.removeprefix(".") or "txt"
    if form not in WRITERS:
        raise UserError(f"--output must end in {', '.join(f'.{known}' for known in WRITERS)}; got {options.output}")
    layout = Layout(highlight_words=options.highlight_words, **{name: getattr(options, name) for name in _LAYOUT})
    if layout != Layout() and not options.word_timestamps:
        options.usage_error("the layout of subtitles needs --word-timestamps")
    if len(options.files) > 1 and options.output_dir is None:
        options.usage_error("several recordings need --output-dir")
    outputs = _outputs(options, form)
    model = loaded(lambda: WhisperModel(options.model, weight_dtype=options.weight_dtype))
    failed = 0
    for file, output in zip(options.files, outputs, strict=True):
        try:
            _transcribe(model, file, output, form, layout, options)
        except UserError as error:
            if len(options.files) == 1:
                raise
            complain(str(error))
            failed += 1
    if failed:
        complain(f"{failed} of {len(options.files)} recordings failed")
    return 2 if failed else 0


def _outputs(options: argparse.Namespace, form: str) -> list[str | None]:
    """Return the path of the output of each recording; None stands for standard output."""
    if options.output_dir is None:
        outputs: list[str | None] = [options.output] * len(options.files)
    else:
        with errors_of_files("write", options.output_dir):
            Path(options.output_dir).mkdir(parents=True, exist_ok=True)
        names = [Path("standard_input" if file == "-" else file).stem for file in options.files]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"recordings must have different names, since each has an output; got {name} twice")
        outputs = [str(Path(options.output_dir) / f"{name}.{form}") for name in names]
    for file, output in zip(options.files, outputs, strict=True):
        if output is not None:
            refuse_to_replace(0 if file == "-" else file, output, "--output")
    return outputs


def _transcribe(
    model: WhisperModel, file: str, output: str | None, form: str, layout: Layout, options: argparse.Namespace
) -> None:
    """Write the transcript of a recording as it is made."""
    with _opened(file) as source, _errors_of_recordings(file):
        segments, info = _call(model, options)(source)
        is_shown = output is not None or not sys.stdout.isatty()
        progress = Progress(is_shown, "s of audio")
        try:
            with _target(output) as write:
                for piece in WRITERS[form](_shown(segments, info, progress), info.language, layout):
                    write(piece)
        finally:
            progress.clear()
    report(output, f"{info.duration:,.1f} s of audio")


def _call(
    model: WhisperModel, options: argparse.Namespace
) -> Callable[[Any], tuple[Iterator[Segment], TranscriptionInfo]]:
    given = {name: getattr(options, name) for name in (*_OPTIONS, *_FLAGS)}
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    if options.vad_method is not None:
        given["vad_parameters"] = {"method": options.vad_method}
    if options.batch_size is None:
        return lambda source: model.transcribe(source, **given)
    pipeline = BatchedInferencePipeline(model)
    without_timestamps = not options.word_timestamps
    return lambda source: pipeline.transcribe(
        source, batch_size=options.batch_size, without_timestamps=without_timestamps, **given
    )


def _shown(segments: Iterator[Segment], info: TranscriptionInfo, progress: Progress) -> Iterator[Segment]:
    """Yield segments, and show the seconds of the recording that are done."""
    for segment in segments:
        yield segment
        progress.show(min(segment.end / info.duration, 1) if info.duration else None, round(segment.end))


@contextlib.contextmanager
def _opened(file: str) -> Iterator[str | BinaryIO]:
    if file != "-":
        yield file
    elif sys.stdin is None:
        raise UserError("cannot read standard input: it is closed")
    else:
        yield sys.stdin.buffer


@contextlib.contextmanager
def _target(output: str | None) -> Iterator[Write]:
    if output is None:
        yield write_at_once
    else:
        with written(output) as target:
            yield lambda text: target.write(text.encode())


@contextlib.contextmanager
def _errors_of_recordings(file: str) -> Iterator[None]:
    """Raise errors of a recording, a package or an option as UserErrors."""
    try:
        with errors_of_files("read", file), names_of_options(*_OPTIONS, *_FLAGS):
            yield
    except ImportError as error:
        raise UserError(str(error)) from error


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
