"""``python -m mha_native transcribe``: text and subtitles of recordings, and recordings that are none."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line import assert_refused, run
from recordings import recording, recording_file
from terminal import Terminal

from mha_native.commands import transcribe
from mha_native.commands.output import PARTIAL_FILES
from mha_native.speech import Segment, WhisperModel
from mha_native.speech._writers import WRITERS, Layout

pytest.importorskip("soundfile")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def whisper(speech_model_directory: Path) -> WhisperModel:
    return WhisperModel(speech_model_directory)


@pytest.fixture
def model(whisper: WhisperModel, speech_model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of the model, which commands in this process read once."""

    def opened(folder: str, **formats: Any) -> WhisperModel:
        assert (folder, formats) == (str(speech_model_directory), {"weight_dtype": "float32"})
        return whisper

    monkeypatch.setattr(transcribe, "WhisperModel", opened)
    return str(speech_model_directory)


@pytest.fixture(scope="module")
def segments(whisper: WhisperModel) -> list[Segment]:
    """What the model hears."""
    return list(whisper.transcribe(recording("sentence"), word_timestamps=True, beam_size=1)[0])


@pytest.fixture(scope="module")
def sentence(segments: list[Segment]) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in segments)


def test_text_of_files_and_of_standard_input(
    model: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "mariner" in sentence
    path = recording_file("sentence")
    assert run(capsys, "transcribe", "--model", model, "--beam-size", "1", str(path)) == (0, sentence, "")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    assert run(capsys, "transcribe", "--model", model, "--beam-size", "1", "-") == (0, sentence, "")


@pytest.mark.parametrize("form", WRITERS)
def test_outputs_of_each_format(
    form: str, model: str, segments: list[Segment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--word-timestamps", "--max-line-width", "20", "--max-line-count", "2", "--beam-size", "1"]
    if form == "srt":
        directory = ["--output-dir", str(tmp_path), "--output-format", form]
    else:
        directory = ["--output", str(tmp_path / f"sentence.{form}")]
    command = ["transcribe", "--model", model, str(recording_file("sentence")), *directory, *options]
    assert run(capsys, *command) == (0, f"3.0 s of audio: {tmp_path}/sentence.{form}\n", "")
    expected = "".join(WRITERS[form](segments, "en", Layout(max_line_width=20, max_line_count=2)))
    assert (tmp_path / f"sentence.{form}").read_text(encoding="utf-8") == expected


def test_a_recording_that_fails_does_not_stop_the_others(
    model: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "diary.wav"
    text.write_text("dear diary\n" * 100)
    arguments = ["transcribe", "--model", model, "--beam-size", "1", "--output-dir", str(tmp_path)]
    code, out, err = run(capsys, *arguments, str(text), str(recording_file("sentence")))
    assert (code, out) == (2, f"3.0 s of audio: {tmp_path / 'sentence.txt'}\n")
    first, second = err.splitlines()
    assert first.startswith(
        f"mha_native: WhisperModel.transcribe: audio must be a recording; no package reads '{str(tmp_path)[:10]}"
    )
    assert second == "mha_native: 1 of 2 recordings failed"
    assert (tmp_path / "sentence.txt").read_text() == sentence
    assert not (tmp_path / "diary.txt").exists()


def test_speech_and_windows(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = str(recording_file("pauses")), tmp_path / "talk.json"
    for options in (["--vad-filter"], ["--batch-size", "2"]):
        command = ["transcribe", "--model", model, path, "--beam-size", "1", "--vad-method", "energy"]
        command += ["--output", str(output)]
        assert run(capsys, *command, *options)[0] == 0
        segments = json.loads(output.read_text())["segments"]
        assert segments[0]["start"] > 6
        assert "ship" in segments[0]["text"]
        assert "sea" in segments[-1]["text"]


def test_an_interrupt_leaves_whole_files(model: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "five_minutes.txt").write_text("as it was")
    files = [str(recording_file(name)) for name in ("sentence", "five_minutes")]
    command = ["transcribe", "--model", model, "--beam-size", "1", "--output-dir", str(tmp_path)]
    with Terminal(*command, *files) as terminal:
        terminal.wait_for("sentence.txt")
        while not list(tmp_path.glob(PARTIAL_FILES)):  # of the second one
            time.sleep(0.02)
        terminal.interrupt()
        code, shown = terminal.end()
    assert code == 130
    assert "mha_native: interrupted" in shown
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "sentence.txt": sentence,
        "five_minutes.txt": "as it was",
    }


def test_progress_is_in_seconds_of_audio(segments: list[Segment]) -> None:
    shown: list[tuple[float | None, int]] = []
    progress: Any = SimpleNamespace(show=lambda share, count: shown.append((share, count)))
    given = [replace(segments[0], end=end) for end in (1.2, 3.0, 3.06)]
    assert list(transcribe._shown(iter(given), cast(Any, SimpleNamespace(duration=3.05)), progress)) == given
    assert shown == [(1.2 / 3.05, 1), (3.0 / 3.05, 3), (1, 3)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["talk.wav", "--output", "talk.doc"], ["--output must end in .txt, .srt, .vtt, .json, .tsv; got talk.doc"]),
        (["talk.wav", "--output", "talk.wav", "--output-format", "txt"], ["--output must be another file"]),
        (["missing.wav"], ["cannot read missing.wav: No such file"]),
        (["talk.wav", "--beam-size", "0"], ["--beam-size must be at least 1; got 0"]),
        (["talk.wav", "--language", "de"], ["--language must be 'en'"]),
        (["a/talk.wav", "b/talk.wav", "--output-dir", "."], ["different names", "talk twice"]),
    ],
)
def test_calls_that_are_refused(
    arguments: list[str],
    words: list[str],
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("talk.wav").write_bytes(recording_file("second").read_bytes())
    assert_refused(*run(capsys, "transcribe", "--model", model, *arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.wav", "b.wav"], "several recordings need --output-dir"),
        (["a.wav", "--highlight-words"], "needs --word-timestamps"),
    ],
)
def test_calls_that_make_no_sense(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "transcribe", "--model", "nowhere", *arguments)
    assert words in capsys.readouterr().err
