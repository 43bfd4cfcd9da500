"""Speech to text on a CPU: segments while they are heard, the times of words, subtitles, and a stream.

    python examples/transcribe_speech.py [MODEL [RECORDING]]

The model is a directory of CTranslate2 or transformers, a size or a name; default: the environment variable
MHA_NATIVE_SPEECH_MODEL, or else tiny.en. Without a recording, espeak-ng reads a few lines of a poem.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import soundfile  # noqa: F401, reads the file
except ImportError:
    sys.exit("this example needs the package soundfile: pip install soundfile soxr")

from mha_native.speech import WhisperModel, audio_blocks, transcribe_stream

default = os.environ.get("MHA_NATIVE_SPEECH_MODEL", "tiny.en")
try:
    model = WhisperModel(sys.argv[1] if len(sys.argv) > 1 else default)
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
folder = tempfile.TemporaryDirectory()
if len(sys.argv) > 2:
    recording = sys.argv[2]
elif shutil.which("espeak-ng"):
    recording = str(Path(folder.name) / "poem.wav")
    poem = "The sun came up upon the left, out of the sea came he. And he shone bright, and on the right, went down."
    subprocess.run(["espeak-ng", "-v", "en-us", "-w", recording, poem], check=True)
else:
    sys.exit("give a recording, or install espeak-ng, which speaks one")

# A generator: each segment appears when it is heard.
segments, info = model.transcribe(recording, beam_size=5, word_timestamps=True)
print(f"{info.duration:.1f} seconds, language {info.language}")
text = ""
for segment in segments:
    print(f"[{segment.start:5.2f} -> {segment.end:5.2f}] {segment.text}")
    assert all(word.start <= word.end for word in segment.words)
    last = segment.words[-1]
    print(f"  the last word is{last.word}, at {last.start:.2f} s, with probability {last.probability:.2f}")
    text += segment.text

# The same as a stream, in blocks as a microphone gives them: stable text stays, tentative text may change.
stable = ""
for piece in transcribe_stream(model, audio_blocks(recording, seconds=0.5), step_seconds=2.0):
    stable += piece.stable
    print(f"{stable.strip()} | {piece.tentative.strip()}")
assert abs(len(stable.split()) - len(text.split())) <= 2
