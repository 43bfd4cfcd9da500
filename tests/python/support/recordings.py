"""Ten recordings for tests of speech, made on the spot: voices of espeak-ng and flite, and sounds of sox.

The texts are in the public domain: Coleridge, Lincoln, Goethe and La Fontaine. As a program it makes all of them:

    python tests/python/support/recordings.py
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAMPLING_RATE = 16_000

_POEM = Path(__file__).resolve().parents[3] / "examples" / "ancient_mariner.txt"

_ADDRESS = """Four score and seven years ago our fathers brought forth on this continent a new nation, conceived in
liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war,
testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great
battlefield of that war. We have come to dedicate a portion of that field as a final resting place for those who here
gave their lives that that nation might live. It is altogether fitting and proper that we should do this."""

_GERMAN = """Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind. Er hat den Knaben wohl in dem
Arm, er fasst ihn sicher, er hält ihn warm. Mein Sohn, was birgst du so bang dein Gesicht?"""

_FRENCH = """Maître Corbeau, sur un arbre perché, tenait en son bec un fromage. Maître Renard, par l'odeur alléché, lui
tint à peu près ce langage: Bonjour, Monsieur du Corbeau."""


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _as_needed(source: str | Path, target: Path, *effects: str) -> None:
    """Convert a file to 16 kHz, one channel and 16 bits. Without dither: the same file again."""
    _run("sox", "-D", source, "-r", str(SAMPLING_RATE), "-c", "1", "-b", "16", target, *effects)


def _espeak(text: str, *options: str) -> Callable[[Path], None]:
    def make(target: Path) -> None:
        spoken = target.with_name("spoken.wav")
        _run("espeak-ng", *options, "-w", spoken, text)
        _as_needed(spoken, target)

    return make


def _flite(text: str, voice: str) -> Callable[[Path], None]:
    def make(target: Path) -> None:
        spoken = target.with_name("spoken.wav")
        _run("flite", "-voice", voice, "-o", spoken, "-t", text)
        _as_needed(spoken, target)

    return make


def _with_pauses(target: Path) -> None:
    """Two voices with 7 seconds of silence between them and around them."""
    first, second, pause = (target.with_name(f"{name}.wav") for name in ("first", "second", "pause"))
    _espeak("The ship was cheered, the harbour cleared, merrily did we drop below the kirk.", "-v", "en-us")(first)
    _flite("The sun came up upon the left, out of the sea came he.", "awb")(second)
    _run("sox", "-D", "-n", "-r", str(SAMPLING_RATE), "-c", "1", "-b", "16", pause, "trim", "0", "7")
    _run("sox", "-D", pause, first, pause, second, pause, target)


def _five_minutes(target: Path) -> None:
    spoken = target.with_name("spoken.wav")
    _run("espeak-ng", "-v", "en-us", "-s", "160", "-f", _POEM, "-w", spoken)
    _as_needed(spoken, target, "trim", "0", "300")


def _sound(seconds: int, *effects: str) -> Callable[[Path], None]:
    """A sound of sox, with the same noise at each run."""
    shape = ("-r", str(SAMPLING_RATE), "-c", "1", "-b", "16")
    return lambda target: _run("sox", "-R", "-D", "-n", *shape, target, "synth", str(seconds), *effects)


_CHORDS = ("pluck", "A2", "pluck", "E3", "pluck", "A3", "sine", "C4", "tremolo", "3", "60", "gain", "-9")

RECORDINGS: dict[str, Callable[[Path], None]] = {
    "second": _espeak("Good morning.", "-v", "en-us"),
    "sentence": _espeak("It is an ancient Mariner, and he stoppeth one of three.", "-v", "en-gb"),
    "paragraph": _flite(_ADDRESS, "slt"),
    "pauses": _with_pauses,
    "five_minutes": _five_minutes,
    "silence": _sound(10, "sine", "440", "vol", "0"),
    "noise": _sound(20, "whitenoise", "vol", "0.1"),
    "music": _sound(25, *_CHORDS),
    "german": _espeak(_GERMAN, "-v", "de"),
    "french": _espeak(_FRENCH, "-v", "fr"),
}

TOOLS = ("espeak-ng", "flite", "sox")


def recording_file(name: str) -> Path:
    """The WAV file of a recording, 16 kHz and one channel of 16 bits, made unless it is there.

    Without the programs the test is skipped, but in continuous integration (CI) it fails.
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        import pytest  # not needed by the program

        reason = f"recordings need {', '.join(missing)}, packages of Debian"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    version = sha256(Path(__file__).read_bytes()).hexdigest()[:12]  # another recipe, other recordings
    folder = Path(tempfile.gettempdir()) / f"mha_native_recordings_{os.getuid()}_{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.wav"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes of pytest-xdist makes it, the others wait
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as partial:
                made = Path(partial) / "made.wav"
                RECORDINGS[name](made)
                made.rename(path)
    return path


@cache
def recording(name: str) -> NDArray[np.float32]:
    """The samples of a recording, read-only float32 [samples] at 16 kHz."""
    with wave.open(str(recording_file(name))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (SAMPLING_RATE, 1, 2)
        samples = np.divide(np.frombuffer(file.readframes(file.getnframes()), "<i2"), 32768, dtype=np.float32)
    samples.flags.writeable = False
    return samples


if __name__ == "__main__":
    for each in RECORDINGS:
        print(recording_file(each), f"{len(recording(each)) / SAMPLING_RATE:.2f} s")
