"""Whisper tiny.en in its file of CTranslate2: rows, tokens and weights of transformers with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pretrained
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from mha_native.models import SpeechSeq2Seq
from mha_native.models.files.ctranslate2 import CTranslate2File, CTranslate2Source

Array = np.ndarray[Any, Any]

START = [50257, 50362]  # the beginning of a text, without timestamps


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return pretrained.find(request, pretrained.SPEECH)


@pytest.fixture(scope="module")
def features() -> Array:
    """Voiced sound whose pitch and loudness move, as that of speech."""
    time = np.arange(12 * 16000) / 16000
    pitch = 120 + 40 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))
    extractor = transformers.WhisperFeatureExtractor()
    found = extractor(voice.astype(np.float32), sampling_rate=16000, return_tensors="np").input_features
    return np.asarray(found, np.float32)


def test_transformers_with_the_numbers_of_the_file(folder: Path, features: Array) -> None:
    model = SpeechSeq2Seq.from_pretrained(folder)
    config = transformers.WhisperConfig(**CTranslate2Source(folder).config, attn_implementation="eager")
    theirs = transformers.WhisperForConditionalGeneration(config).double().eval()
    with CTranslate2File(folder / "model.bin") as file:
        state = {
            name if name.startswith("proj_out") else f"model.{name}": torch.from_numpy(file.read(name)).double()
            for name in file.entries
            if not name.endswith("k_proj.bias")
        }
    theirs.load_state_dict(state)
    encoded, tokens = model.encode(features), list(START)
    with torch.no_grad():
        expected = theirs.model.encoder(torch.from_numpy(features.astype(np.float64))).last_hidden_state
    assert np.abs(encoded.rows - expected.numpy()).max() < 1e-5 * np.abs(expected.numpy()).max()
    decoder = model.decoder(encoded, [0])
    logits = decoder.step([START], last_only=True)
    for _ in range(12):
        tokens.append(int(logits[0].argmax()))
        logits = decoder.step([tokens[-1:]])
    with torch.no_grad():
        found = theirs(encoder_outputs=(expected,), decoder_input_ids=torch.tensor([tokens]), output_attentions=True)
    assert found.logits[0, 1:-1].argmax(-1).tolist() == tokens[2:]
    weights = model.alignment(encoded, 0, tokens)
    of_heads = np.stack([found.cross_attentions[i][0, j].numpy() for i, j in model.alignment_heads])
    np.testing.assert_allclose(weights, of_heads, rtol=0, atol=1e-4)
    assert model.alignment_heads[:2] == [(1, 0), (2, 0)]
    assert model.suppress_ids_begin == [220, 50256]
    assert not model.multilingual


def test_tokens_of_ctranslate2(folder: Path, features: Array) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    theirs = ctranslate2.models.Whisper(str(folder), compute_type="float32", intra_threads=1)
    encoded = theirs.encode(ctranslate2.StorageView.from_array(features))
    options: Any = {"beam_size": 1, "max_length": 40, "suppress_blank": False, "suppress_tokens": []}
    expected = theirs.generate(encoded, [START], **options)[0].sequences_ids[0]
    model = SpeechSeq2Seq.from_pretrained(folder)
    rows = model.encode(features)
    assert np.abs(rows.rows - np.array(encoded)).max() < 1e-4 * np.abs(rows.rows).max()
    decoder = model.decoder(rows, [0])
    logits, tokens = decoder.step([START], last_only=True), list[int]()
    while len(tokens) < len(expected):
        logits[:, 50363:] = -np.inf  # timestamps
        tokens.append(int(logits[0].argmax()))
        logits = decoder.step([tokens[-1:]])
    assert tokens == expected
