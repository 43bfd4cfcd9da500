"""Log-mel spectrograms of Whisper: equal to those of transformers' WhisperFeatureExtractor within 1e-5.

The window, the steps and the clipping are those of the paper, https://arxiv.org/abs/2212.04356, section 2.2; the bands
are those of Slaney's Auditory Toolbox, as librosa and transformers compute them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..functions.runtime import num_threads as default_threads
from ..layers.linear import Linear
from ._audio import SAMPLING_RATE, Audio, Samples, open_audio

Features: TypeAlias = NDArray[np.float32]  # [mel_bins, frames]

HOP = 160  # samples from a frame to the next: 10 ms
WINDOW = 400  # samples of a frame: 25 ms

# Frames that are computed at once: 128 frames of 400 numbers of 8 bytes, and their transforms, are 0.8 MB, which fits
# the second-level cache of most processors. The same for any number of threads: so are the bits.
_BLOCK = 128

_FLOOR = 1e-10  # of the energy in a band
_RANGE = 8.0  # powers of ten below the largest energy that are kept
_PASS = 32 * 1024  # frames that a pass over a long recording computes at once: 10 MB of 80 bands


class LogMel:
    """Compute log-mel spectrograms of samples at 16 kHz.

    Parameters
    ----------
    mel_bins : int
        Bands: 80, or 128 from large-v3 on.
    num_threads : int, optional
        Threads of a call; default: `mha_native.num_threads`.
    """

    def __init__(self, mel_bins: int = 80, num_threads: int | None = None) -> None:
        self.mel_bins, self._num_threads = mel_bins, num_threads
        self._to_bands = Linear.from_weights(mel_filters(mel_bins).astype(np.float32))

    def __call__(self, samples: Samples, padding: int = 0) -> Features:
        """Return the spectrogram, float32 [mel_bins, frames]: a frame for each 160 samples.

        Parameters
        ----------
        samples : [samples]
        padding : int
            Zeros after the samples.
        """
        return self.over(open_audio(samples, function="LogMel"), padding).window(0)

    def over(self, audio: Audio, padding: int = HOP) -> SpeechFeatures:
        """Return the spectrogram of a recording, which is computed as its windows are read."""
        return SpeechFeatures(self, audio, padding)

    def energies(self, samples: Samples) -> NDArray[np.float32]:
        """Return the logarithm of the energies, float32 [frames, mel_bins], of as many frames as fit the samples."""
        frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
        out = np.empty((len(frames), self.mel_bins), np.float32)

        threads = max(1, min(self._num_threads or default_threads(), -(-len(frames) // _BLOCK)))
        blocks: SimpleQueue[int | None] = SimpleQueue()  # each thread takes its next one when it is free
        for block in (*range(0, len(frames), _BLOCK), *[None] * threads):
            blocks.put(block)

        def compute() -> None:
            windowed, power = np.empty((_BLOCK, WINDOW)), np.empty((_BLOCK, WINDOW // 2 + 1), np.float32)
            for first in iter(blocks.get, None):
                count = min(_BLOCK, len(frames) - first)
                np.multiply(frames[first : first + count], _hann(), out=windowed[:count])
                spectra = np.fft.rfft(windowed[:count])  # in float64: 1e-5 needs it
                parts = np.square(spectra.view(np.float64), out=spectra.view(np.float64))  # real, imaginary, real ...
                np.add(parts[:, 0::2], parts[:, 1::2], out=power[:count], casting="same_kind")
                bands = self._to_bands(power[:count], num_threads=1)
                np.log10(np.maximum(bands, _FLOOR, out=bands), out=out[first : first + count])

        if threads < 2:
            compute()
            return out
        # A processor may be busy, as with a thread of OpenMP that spins after a call. This thread then does the work.
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(compute) for _ in range(threads - 1)]
            compute()
            for other in others:
                other.result()
        return out


class SpeechFeatures:
    """The log-mel spectrogram of a recording, whose windows are computed as they are read.

    Energies below the largest one of the whole recording by more than 8 powers of ten are raised to that. One pass
    before the first window finds the largest.
    """

    def __init__(self, mel: LogMel, audio: Audio, padding: int) -> None:
        self._mel, self._audio, self._padding = mel, audio, padding
        self._largest: float | None = None

    @property
    def frames(self) -> int:
        """The number of frames."""
        return (self._audio.length + self._padding) // HOP

    def window(self, first: int, last: int | None = None) -> Features:
        """Return the frames from `first` to `last`, without it, float32 [mel_bins, at most last - first]."""
        whole = self.frames
        last = whole if last is None else min(last, whole)
        if last <= first:
            return np.zeros((self._mel.mel_bins, 0), np.float32)
        if first == 0 and last == whole and self._largest is None:
            energies = self._energies(first, last)
            self._largest = float(energies.max())
        else:
            if self._largest is None:
                self._largest = max(float(self._energies(*part).max()) for part in _parts(whole))
            energies = self._energies(first, last)
        np.maximum(energies, np.float32(self._largest - _RANGE), out=energies)
        energies += np.float32(4.0)
        energies *= np.float32(0.25)
        return np.ascontiguousarray(energies.T)

    def _energies(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the logarithms of the energies of some frames, [last - first, mel_bins].

        A frame has its middle at its first sample. The samples before the beginning and after the end are reflections.
        """
        half, end = WINDOW // 2, self._audio.length + self._padding
        start, stop = first * HOP - half, (last - 1) * HOP + half
        left, right = max(-start, 0), max(stop - end, 0)
        low, high = max(start, 0), min(max(stop, left + 1), end)
        samples = self._audio.read(low, high)
        if len(samples) < high - low:
            samples = np.pad(samples, (0, high - low - len(samples)))
        if left or right:
            samples = np.pad(samples, (left, right), mode="reflect")
        return self._mel.energies(samples[: stop - start])


def _parts(frames: int) -> Iterator[tuple[int, int]]:
    return pairwise([*range(0, frames, _PASS), frames])


@lru_cache(maxsize=1)
def _hann() -> NDArray[np.float64]:
    """Return the window of a frame, [400], as of a longer periodic one."""
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(2 * np.pi / WINDOW * np.arange(WINDOW))
    return window


def mel_filters(mel_bins: int) -> NDArray[np.float64]:
    """Return the share of each frequency in each band, [mel_bins, 201], from 0 to 8 kHz.

    Bands are triangles between their neighbours' middles, with the same area. The middles have equal distances on the
    scale of Slaney, which is linear up to 1 kHz and logarithmic above.
    """
    linear_hz, log_step = 200 / 3, np.log(6.4) / 27  # hertz of a mel, and powers of e of a mel
    corner_hz = 1000.0
    corner = corner_hz / linear_hz  # in mel
    top = corner + np.log(SAMPLING_RATE / 2 / corner_hz) / log_step
    mels = np.linspace(0.0, top, mel_bins + 2)
    edges = np.where(mels < corner, mels * linear_hz, corner_hz * np.exp(log_step * (mels - corner)))
    frequencies = np.linspace(0.0, SAMPLING_RATE / 2, WINDOW // 2 + 1)
    below, middle, above = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - below) / (middle - below)
    falling = (above - frequencies) / (above - middle)
    filters: NDArray[np.float64] = np.maximum(np.minimum(rising, falling), 0.0) * (2 / (above - below))
    return filters
