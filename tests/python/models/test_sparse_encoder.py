"""Sparse embeddings by masked language models, against sentence-transformers."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_sparse
from tiny_sparse import FAMILIES, TEXTS
from tolerance import assert_close, assert_same_bits

from mha_native.models import SentenceEncoder, SparseEmbeddings, SparseEncoder
from mha_native.models.architecture.norms import NormConfig
from mha_native.models.heads import masked_language
from mha_native.models.heads.masked_language import MaskedHead, MaskedHeadConfig, SparsePooling

# Of the other package: its scores use CSR tensors, and its tensors are made without a choice about checks.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")

pytest.importorskip("transformers")
library = pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")


def _assert_like(actual: SparseEmbeddings, expected: Any) -> None:
    dense = expected.to_dense().numpy()
    assert actual.values.dtype == np.float32
    assert_close(actual.to_dense(), dense, 1e-5 * max(1, dense.max()), label="sparse embeddings")
    shown = [(row[row > 1e-4] > 0).sum() for row in dense]
    assert shown == [(values > 1e-4).sum() for _, values in (actual.row(i) for i in range(actual.num_texts))]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path: Path, family: str, tied: bool) -> None:
    further = {"decoder_bias": tied, "classifier_bias": not tied} if family == "modernbert" else {}
    home = tiny_sparse.write_masked(tmp_path / "model", family, tie_word_embeddings=tied, **further)
    model = SparseEncoder.from_pretrained(home)
    theirs = library.SparseEncoder(str(home), device="cpu")
    _assert_like(model.encode(TEXTS), theirs.encode(TEXTS))
    for strategy, activation in (("sum", "relu"), ("max", "log1p_relu"), ("sum", "log1p_relu")):
        theirs[1].pooling_strategy, theirs[1].activation_function = strategy, activation
        theirs.save_pretrained(str(tmp_path / strategy / activation), create_model_card=False)
        ours = SparseEncoder.from_pretrained(tmp_path / strategy / activation)
        _assert_like(ours.encode(TEXTS), theirs.encode(TEXTS))


def test_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not depend on other texts, on threads, or on the columns that are computed at once."""
    home = tiny_sparse.write_masked(tmp_path)
    model = SparseEncoder.from_pretrained(home)
    whole = model.encode(TEXTS)
    alone = SparseEmbeddings.concatenated((model.encode(text, num_threads=1) for text in TEXTS), model.embed_dim)
    batches = SparseEmbeddings.concatenated(model.encode_batches(iter(TEXTS), num_threads=2), model.embed_dim)
    copied = pickle.loads(pickle.dumps(model)).encode(TEXTS)
    monkeypatch.setattr(masked_language, "_COLUMNS", 5)
    for other in (alone, batches, copied, SparseEncoder.from_pretrained(home).encode(TEXTS)):
        assert_same_bits(other.to_dense(), whole.to_dense())
    assert model.encode([]).num_texts == 0
    assert model.embed_dim == 37
    half = SparseEncoder.from_pretrained(home, dtype="bfloat16").encode(TEXTS).to_dense()
    assert np.abs(half - whole.to_dense()).max() < 0.1


def test_settings_of_sentence_transformers(tmp_path: Path) -> None:
    theirs = library.SparseEncoder(
        str(tiny_sparse.write_masked(tmp_path / "model")), device="cpu", prompts={"query": "the "}, max_active_dims=6
    )
    theirs.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    model = SparseEncoder.from_pretrained(tmp_path / "saved")
    assert (model.max_active_dims, model.similarity_fn_name) == (6, "dot")
    found = model.encode(TEXTS)
    _assert_like(found, theirs.encode(TEXTS))
    assert np.diff(found.offsets).max() == 6
    _assert_like(model.encode(TEXTS, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query"))
    _assert_like(model.encode(TEXTS, max_active_dims=3), theirs.encode(TEXTS, max_active_dims=3))
    expected = theirs.decode(theirs.encode(TEXTS), top_k=2)
    for words, others in zip(model.decode(found, top_k=2), expected, strict=True):
        assert [word for word, _ in words] == [word for word, _ in others]
    scores = theirs.similarity(theirs.encode(TEXTS), theirs.encode(TEXTS)).numpy()
    assert_close(found.dot(found), scores, 1e-5 * scores.max(), label="scores")
    # The names of modules before version 5.4.
    path = tmp_path / "saved" / "modules.json"
    kinds = ["sparse_encoder.models.MLMTransformer", "sparse_encoder.models.SpladePooling"]
    modules = json.loads(path.read_text(encoding="utf-8"))
    for module, kind in zip(modules, kinds, strict=True):
        module["type"] = f"sentence_transformers.{kind}"
    path.write_text(json.dumps(modules), encoding="utf-8")
    assert_same_bits(SparseEncoder.from_pretrained(tmp_path / "saved").encode(TEXTS).to_dense(), found.to_dense())


def test_memory_of_the_head() -> None:
    """The array [tokens, vocabulary] is never stored whole, nor in large parts."""
    width, words, tokens = 16, 30_522, 2048
    rng = np.random.default_rng(0)
    names = MaskedHeadConfig("dense", "norm", "matrix", "bias", width, words, "gelu", True, NormConfig("layer", 1e-5))
    shapes = dict(names.tensor_shapes())
    weights: Any = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    head = MaskedHead(names, weights, SparsePooling())
    rows, cu_seqlens = rng.standard_normal((tokens, width), np.float32), np.arange(0, tokens + 1, 128)
    head.vectors(rows, cu_seqlens, 1)
    tracemalloc.start()
    try:
        head.vectors(rows, cu_seqlens, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    whole = 4 * tokens * words  # 250 MB
    assert peak < whole / 12


def test_refusals(tmp_path: Path) -> None:
    home = tiny_sparse.write_masked(tmp_path / "model")
    model = SparseEncoder.from_pretrained(home)
    with pytest.raises(ValueError, match=r"SparseEncoder\.encode: max_active_dims must be at least 1"):
        model.encode(TEXTS, max_active_dims=0)
    with pytest.raises(ValueError, match=r"SparseEncoder\.decode: embeddings must be SparseEmbeddings of 37 features"):
        model.decode(SparseEmbeddings.of_dense(np.ones((1, 3), np.float32)))
    with pytest.raises(TypeError, match=r"SparseEncoder\.encode: texts must be str; got int at 1"):
        model.encode(["a", 3])  # type: ignore[list-item]

    def refused(message: str, **entries: Any) -> None:
        values = json.loads((home / "config.json").read_text(encoding="utf-8"))
        (home / "config.json").write_text(json.dumps(values | entries), encoding="utf-8")
        with pytest.raises(ValueError, match=r"^SparseEncoder\.from_pretrained: ") as caught:
            SparseEncoder.from_pretrained(home)
        assert message in str(caught.value)
        (home / "config.json").write_text(json.dumps(values), encoding="utf-8")

    refused("architectures must have a ...ForMaskedLM", architectures=["BertForSequenceClassification"])
    refused("model_type must be of a family with masked language models", model_type="nomic_bert")
    refused("does not hold the model of config.json: missing: cls.predictions.decoder.", tie_word_embeddings=False)
    SentenceEncoder.from_pretrained(home)  # which needs no head
    library.SparseEncoder(str(home), device="cpu").save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    path = tmp_path / "saved" / "1_SpladePooling" / "config.json"
    path.write_text('{"pooling_strategy": "mean"}', encoding="utf-8")
    with pytest.raises(ValueError, match="pooling_strategy must be 'max' or 'sum'; got 'mean'"):
        SparseEncoder.from_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "modules.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must list Transformer and SpladePooling.*; got nothing"):
        SparseEncoder.from_pretrained(tmp_path / "saved")


def test_sparse_embeddings() -> None:
    rng = np.random.default_rng(3)
    dense = np.where(rng.random((5, 9)) < 0.4, rng.integers(1, 4, (5, 9)), 0).astype(np.float32)
    dense[2] = 0
    found = SparseEmbeddings.of_dense(dense)
    assert_same_bits(found.to_dense(), dense)
    assert (found.num_texts, found.features) == (5, 9)
    for i in (0, 2, 4):
        indices, values = found.row(i)
        assert indices.tolist() == np.flatnonzero(dense[i]).tolist()
        assert_same_bits(values, dense[i][indices])
    with pytest.raises(IndexError, match="i must be from 0 to 4; got 5"):
        found.row(5)
    largest = found.largest(2).to_dense()
    for row, kept in zip(dense, largest, strict=True):
        chosen = sorted(np.flatnonzero(row), key=lambda j, row=row: (-row[j], j))[:2]
        assert np.flatnonzero(kept).tolist() == sorted(chosen)
        assert_same_bits(kept[chosen], row[chosen])
    others = SparseEmbeddings.of_dense(dense[:2])
    assert_same_bits(found.dot(others), dense @ dense[:2].T)
    with pytest.raises(ValueError, match="others must have 9 features; got 4"):
        found.dot(SparseEmbeddings.of_dense(np.ones((1, 4), np.float32)))
    pytest.importorskip("scipy")
    assert_same_bits(found.to_scipy().toarray(), dense)
