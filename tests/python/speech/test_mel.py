"""Log-mel spectrograms against transformers, and against the textbook: a Fourier sum of each frame in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from recordings import RECORDINGS, recording

from mha_native.speech._audio import open_audio
from mha_native.speech._mel import LogMel, mel_filters


def textbook(samples: NDArray[np.float32], mel_bins: int, padding: int) -> NDArray[np.float64]:
    """The spectrogram by sums over the window, [mel_bins, frames]."""
    padded = np.pad(np.pad(samples.astype(np.float64), (0, padding)), 200, mode="reflect")
    times = np.arange(400)
    window = np.sin(np.pi * times / 400) ** 2
    waves = np.exp(-2j * np.pi * np.outer(times, np.arange(201)) / 400) * window[:, None]
    frames = np.stack([padded[at : at + 400] for at in range(0, len(samples) + padding - 159, 160)])
    energies = np.log10(np.maximum(np.abs(frames @ waves) ** 2 @ mel_filters(mel_bins).T, 1e-10))
    return (np.maximum(energies, energies.max() - 8) + 4).T / 4


@pytest.mark.parametrize("mel_bins", [80, 128])
def test_the_spectrogram_is_the_sum_of_the_textbook(rng: np.random.Generator, mel_bins: int) -> None:
    mel = LogMel(mel_bins)
    for length in (0, 1, 7, 159, 160, 161, 200, 399, 401, 5000):
        samples = rng.standard_normal(length).astype(np.float32) * np.geomspace(1, 1e-4, length, dtype=np.float32)
        expected = textbook(samples, mel_bins, 160)
        assert expected.shape == (mel_bins, 1 + length // 160)
        np.testing.assert_allclose(mel(samples, padding=160), expected, rtol=0, atol=1e-5)
    assert mel(np.zeros(0, np.float32)).shape == (mel_bins, 0)


@pytest.mark.parametrize("mel_bins", [80, 128])
def test_the_spectrogram_of_recordings_is_that_of_transformers(mel_bins: int) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.WhisperFeatureExtractor(feature_size=mel_bins)
    np.testing.assert_allclose(mel_filters(mel_bins), oracle.mel_filters.T, rtol=0, atol=1e-12)
    for name in RECORDINGS.keys() - {"five_minutes"}:
        samples = recording(name)
        # In float64, as transformers computes without torch. Its float32 misses this by 5e-5, and 1e-5 as well.
        expected = oracle._np_extract_fbank_features(np.pad(samples, (0, 160))[None], "cpu")[0]
        np.testing.assert_allclose(LogMel(mel_bins)(samples, padding=160), expected, rtol=0, atol=1e-5, err_msg=name)


def test_threads_and_windows_have_the_same_bits(rng: np.random.Generator) -> None:
    samples = rng.standard_normal(100_000).astype(np.float32)
    samples[60_000:] *= 100  # the largest energy is not in the first windows
    alone = LogMel(80, num_threads=1)(samples, padding=160)
    assert (LogMel(80, num_threads=3)(samples, padding=160) == alone).all()
    features = LogMel(80).over(open_audio(samples))
    assert features.frames == alone.shape[1]
    cuts = [0, 1, 2, 200, 333, 600, features.frames + 5]
    windows = [features.window(first, last) for first, last in pairwise(cuts)]
    assert (np.concatenate(windows, axis=1) == alone).all()
    assert features.window(400, 400).shape == (80, 0)
