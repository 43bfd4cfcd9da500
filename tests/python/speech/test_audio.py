"""Audio of any kind as samples: arrays, files, pipes, in one piece and in blocks; and what is no audio."""

from __future__ import annotations

import gc
import io
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mha_native.speech._audio import Joined, audio_blocks, decode_audio, open_audio

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")


def tone(seconds: float, rate: int = 16_000) -> NDArray[np.float32]:
    """A tone of 300 Hz that grows louder, [samples]."""
    times = np.arange(round(seconds * rate)) / rate
    return (np.sin(600 * np.pi * times) * np.linspace(0.1, 0.9, len(times))).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "float16", "float32", "float64", ">i2"])
@pytest.mark.parametrize("channels", [0, 1, 2, 8])
def test_arrays_of_each_dtype(dtype: str, channels: int) -> None:
    kind, samples = np.dtype(dtype), tone(0.1).astype(np.float64)
    given = samples
    if kind.kind in "iu":
        half = 2 ** (8 * kind.itemsize - 1)
        given = np.round(samples * (half - 1)) + (half if kind.kind == "u" else 0)
    given = given.astype(kind)
    if channels:
        given = np.repeat(given[:, None], channels, axis=1)
        given[:, -1] = given[:, 0]
    out = decode_audio(given)
    assert (out.dtype, out.shape) == (np.float32, samples.shape)
    step = 2.0 ** -(8 * kind.itemsize - 2) if kind.kind in "iu" else float(np.finfo(kind).eps)
    np.testing.assert_allclose(out, samples, rtol=0, atol=max(step, 1e-7))


def test_channels_are_averaged_or_split() -> None:
    left, right = tone(0.1), tone(0.1)[::-1]
    both = np.stack([left, right], axis=1)
    np.testing.assert_allclose(decode_audio(both), (left + right) / 2, atol=1e-7)
    for got, expected in zip(decode_audio(both, split_stereo=True), (left, right), strict=True):
        assert (got == expected).all()
    assert all((side == left).all() for side in decode_audio(left, split_stereo=True))
    with pytest.raises(ValueError, match=r"^decode_audio: split_stereo needs one or two channels; got 3$"):
        decode_audio(np.zeros((9, 3), np.float32), split_stereo=True)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 192_000])
def test_rates_are_resampled(rate: int, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.repeat(tone(1, rate)[:, None], 8, axis=1), rate, subtype="FLOAT")
    for out in (decode_audio(path), decode_audio(tone(1, rate), source_rate=rate)):
        assert len(out) == 16_000
        np.testing.assert_allclose(out[500:-500], tone(1)[500:-500], atol=2e-3)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_files_paths_and_pipes_give_the_same(form: str, tmp_path: Path) -> None:
    path = tmp_path / "tone.audio"  # the content tells the format
    soundfile.write(path, tone(1), 16_000, format=form)
    expected = decode_audio(path)
    assert len(expected) >= 16_000
    np.testing.assert_allclose(expected[500:15_500], tone(1)[500:15_500], atol=0.1 if form in ("OGG", "MP3") else 1e-4)
    content = path.read_bytes()
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)

    feeder = threading.Thread(target=feed)
    feeder.start()
    with os.fdopen(reading, "rb") as pipe:
        from_pipe = decode_audio(pipe)
    feeder.join()
    written = io.BytesIO(content)
    written.seek(0, 2)
    for out in (from_pipe, decode_audio(written), decode_audio(str(path))):
        assert (out == expected).all()


@pytest.mark.parametrize("num_read", [0, 5_000, 99_000])
def test_a_copy_is_removed_with_its_recording(num_read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when garbage is collected: it may have gigabytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.disable()
    try:
        audio = open_audio(io.BytesIO(wav(tone(4))))
        assert len(audio.read(0, num_read)) == min(num_read, 64_000)
        assert any(tmp_path.iterdir())
        del audio
        assert not any(tmp_path.iterdir())
    finally:
        gc.enable()


@pytest.mark.parametrize(("codec", "name"), [("aac", "talk.m4a"), ("libopus", "film.webm")])
def test_what_soundfile_does_not_read_is_read_by_av(codec: str, name: str, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / name), "w") as container:
        stream = container.add_stream(codec, rate=48_000)
        stream.layout = "stereo"
        pixels = container.add_stream("mpeg4" if name.endswith("m4a") else "libvpx", rate=5)
        pixels.width, pixels.height, pixels.pix_fmt = 64, 64, "yuv420p"
        container.mux(pixels.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        container.mux(pixels.encode(None))
        frame = av.AudioFrame.from_ndarray(np.repeat(tone(2, 48_000)[None], 2, axis=0), format="fltp", layout="stereo")
        frame.rate = 48_000
        for each in (*av.AudioResampler(format=stream.format, layout="stereo", rate=48_000).resample(frame), None):
            container.mux(stream.encode(each))
    out = decode_audio(tmp_path / name)
    assert abs(len(out) - 32_000) < 2_000
    spectrum = np.abs(np.fft.rfft(out[4_000:28_000]))
    assert abs(int(spectrum.argmax()) * 16_000 / 24_000 - 300) < 2
    assert 0.4 < np.abs(out).max() < 1.0


def test_a_recording_is_read_in_any_pieces(rng: np.random.Generator, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(30, 44_100), 44_100)
    expected = decode_audio(path)
    audio = open_audio(path)
    for _ in range(40):
        start = int(rng.integers(0, len(expected) + 10))
        stop = start + int(rng.integers(0, 200_000))
        assert (audio.read(start, stop) == expected[start:stop]).all()
    assert audio.length == len(expected)
    spans = [(10, 5_000), (5_000, 5_001), (300_000, 479_000)]
    joined = Joined(open_audio(path), spans)
    whole = np.concatenate([expected[start:stop] for start, stop in spans])
    assert joined.length == len(whole)
    for start in range(0, len(whole), 7_777):
        assert (joined.read(start, start + 9_000) == whole[start : start + 9_000]).all()
    assert Joined(audio, []).length == len(Joined(audio, []).read(0, 5)) == 0


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    with soundfile.SoundFile(path, "w", 16_000, 1) as file:
        for _ in range(20):
            file.write(np.zeros(16_000 * 60, np.float32))
    tracemalloc.start()
    try:
        lengths = [len(block) for block in audio_blocks(path, seconds=30)]
        assert tracemalloc.get_traced_memory()[1] < 20e6  # all samples are 77 MB
    finally:
        tracemalloc.stop()
    assert lengths == [480_000] * 40


def file_of(tmp_path: Path, content: bytes, name: str = "talk.wav") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def wav(samples: NDArray[Any], form: str = "WAV", **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format=form, **options)
    return file.getvalue()


def test_files_that_are_no_audio(tmp_path: Path) -> None:
    for content, reason in (
        (b"", "talk.wav' is empty$"),
        (b"dear diary\n" * 500, "talk.wav' [(]soundfile: Format not recognised"),
        (wav(tone(1))[:30], "talk.wav' [(]soundfile: "),
    ):
        with pytest.raises(ValueError, match=f"^decode_audio: source must be a recording; .*{reason}"):
            decode_audio(file_of(tmp_path, content))
    with pytest.raises(ValueError, match=r"'\S+/talk.raw' [(]soundfile: samplerate must be specified"):
        decode_audio(file_of(tmp_path, b"dear diary\n" * 500, "talk.raw"))
    with pytest.raises(ValueError, match=r"source must have finite samples; sample 20001 is nan$"):
        decode_audio(file_of(tmp_path, wav(np.where(np.arange(30_000) == 20_001, np.nan, 0.5), subtype="FLOAT")))
    with pytest.raises(FileNotFoundError):
        decode_audio(tmp_path / "missing.wav")
    with pytest.raises(IsADirectoryError):
        decode_audio(tmp_path)


def test_damaged_and_short_files(tmp_path: Path) -> None:
    content = wav(tone(20), "FLAC")
    for damaged in (content[: len(content) // 2], content[: len(content) // 2] + bytes(2_000)):
        path = file_of(tmp_path, damaged)
        with pytest.raises(ValueError, match=r"talk.wav' is damaged somewhere after \d+\.\d s of audio: flac decoder"):
            decode_audio(path)
    assert len(decode_audio(file_of(tmp_path, wav(tone(1))[:16_044]))) == 8_000  # a recorder that lost its power
    assert decode_audio(file_of(tmp_path, wav(np.zeros(0, np.float32)))).shape == (0,)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (3, TypeError, "source must be a path, a file object or an array; got int"),
        ([0.0, 1.0], TypeError, "source must be a path, a file object or an array; got list"),
        (np.zeros(4, np.int64), TypeError, "float64 or integers of 8 to 32 bits; got int64"),
        (np.zeros(4, complex), TypeError, "got complex128"),
        (np.zeros(4, bool), TypeError, "got bool"),
        (np.zeros((2, 480_000), np.float32), ValueError, r"with 1 to 64 channels; got \[2, 480000\]"),
        (np.zeros((2, 3, 4), np.float32), ValueError, r"got \[2, 3, 4\]"),
        (np.float32([0, np.inf]), ValueError, "finite samples; sample 1 is inf"),
    ],
)
def test_arrays_that_are_no_audio(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decode_audio(source)


def test_arguments() -> None:
    assert decode_audio(np.zeros(0, np.float32)).shape == (0,)
    with pytest.raises(ValueError, match="sampling_rate must be from 1 to"):
        decode_audio(tone(0.1), 0)
    with pytest.raises(ValueError, match=r"^audio_blocks: seconds must be at least one sample; got 0"):
        audio_blocks(tone(0.1), seconds=0)
    with pytest.raises(TypeError, match="source_rate is the rate of an array; a file has its own"):
        decode_audio(io.BytesIO(wav(tone(0.1))), source_rate=8_000)
