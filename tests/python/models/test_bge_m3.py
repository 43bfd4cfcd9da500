"""The three outputs of BGE-M3, against the computation of FlagEmbedding, written here on transformers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_sparse
from tolerance import assert_close, assert_same_bits

from mha_native import maxsim
from mha_native.models import BGEM3Encoder, SentenceEncoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

TEXTS = ["the dog", "", "abba a dog", "unknown dog", "the " * 50, "[CLS] a"]
_MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bge")
    tiny_sparse.write_masked(folder, "xlm-roberta")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModel.from_pretrained(folder, config=config).save_pretrained(folder)
    torch.manual_seed(3)
    for name, features in (("sparse_linear", 1), ("colbert_linear", 24)):
        linear = torch.nn.Linear(24, features)
        torch.save(linear.state_dict(), folder / f"{name}.pt")
        safetensors.save_file(linear.state_dict(), folder / f"{name}.safetensors")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(_MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


def _expected(home: Path, text: str) -> tuple[Any, dict[str, float], Any]:
    """The outputs for a text, as FlagEmbedding computes them, in float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    model = transformers.AutoModel.from_pretrained(home).double().eval()
    heads = {name: torch.load(home / f"{name}.pt", weights_only=True) for name in ("sparse_linear", "colbert_linear")}
    inputs = tokenizer(text, truncation=True, return_tensors="pt")
    ids = inputs["input_ids"]
    with torch.no_grad():
        rows = model(input_ids=ids, attention_mask=inputs["attention_mask"]).last_hidden_state[0]
        sparse, colbert = (rows @ head["weight"].double().T + head["bias"].double() for head in heads.values())
    unused = {tokenizer.convert_tokens_to_ids(token) for token in ("[CLS]", "[PAD]", "[UNK]")}  # no eos_token here
    weights: dict[str, float] = {}
    for weight, token in zip(sparse.relu()[:, 0].tolist(), ids[0].tolist(), strict=True):
        if token not in unused and weight > weights.get(str(token), 0):
            weights[str(token)] = weight
    vectors = torch.nn.functional.normalize(colbert[1:], dim=-1)
    return torch.nn.functional.normalize(rows[0], dim=-1).numpy(), weights, vectors.numpy()


def test_outputs(home: Path) -> None:
    model = BGEM3Encoder.from_pretrained(home)
    found = model.encode(TEXTS, return_sparse=True, return_colbert_vecs=True)
    assert any(found["lexical_weights"])
    for i, text in enumerate(TEXTS):
        dense, weights, vectors = _expected(home, text)
        assert_close(found["dense_vecs"][i], dense, np.full(24, 1e-5), label="dense")
        assert_close(found["colbert_vecs"][i], vectors, np.full(vectors.shape, 1e-5), label="colbert")
        assert found["lexical_weights"][i] == pytest.approx(weights, abs=1e-5)
        assert found["lexical_weights"][i].keys() == weights.keys()
    assert_same_bits(found["dense_vecs"], SentenceEncoder.from_pretrained(home).encode(TEXTS))
    listed = home / "modules.json"
    moved = listed.rename(home / "modules.old")  # as FlagEmbedding, which does not read it
    assert_same_bits(BGEM3Encoder.from_pretrained(home).encode(TEXTS)["dense_vecs"], found["dense_vecs"])
    moved.rename(listed)
    sparse = pickle.loads(pickle.dumps(model)).encode_sparse(TEXTS)
    for i, weights in enumerate(found["lexical_weights"]):
        indices, values = sparse.row(i)
        assert {str(token): value for token, value in zip(indices.tolist(), values, strict=True)} == weights
    alone = model.encode(TEXTS[2], return_sparse=True, return_colbert_vecs=True, num_threads=1)
    for name, whole in found.items():
        np.testing.assert_equal(alone[name], whole[2])
    assert model.encode(TEXTS)["colbert_vecs"] is None
    assert model.encode([], return_sparse=True) == {
        "dense_vecs": pytest.approx(np.zeros((0, 24))), "lexical_weights": [], "colbert_vecs": None,
    }  # fmt: skip


def test_scores(home: Path) -> None:
    model = BGEM3Encoder.from_pretrained(home)
    found = model.encode(TEXTS, return_sparse=True, return_colbert_vecs=True)
    pairs = [(TEXTS[0], TEXTS[2]), (TEXTS[3], TEXTS[1])]
    scores = model.compute_score(pairs, weights_for_different_modes=(0.4, 0.2, 0.4))
    for i, (a, b) in enumerate([(0, 2), (3, 1)]):
        dense = float(found["dense_vecs"][a] @ found["dense_vecs"][b])
        sparse = model.compute_lexical_matching_score(found["lexical_weights"][a], found["lexical_weights"][b])
        colbert = model.colbert_score(found["colbert_vecs"][a], found["colbert_vecs"][b])
        both = 0.4 * dense + 0.2 * sparse
        expected = {
            "colbert": colbert, "sparse": sparse, "dense": dense, "sparse+dense": both / 0.6,
            "colbert+sparse+dense": both + 0.4 * colbert,
        }  # fmt: skip
        assert {mode: values[i] for mode, values in scores.items()} == pytest.approx(expected, abs=1e-6)
    all_scores = model.compute_lexical_matching_score(found["lexical_weights"], found["lexical_weights"][:2])
    assert all_scores[2, 0] == model.compute_lexical_matching_score(*(found["lexical_weights"][i] for i in (2, 0)))
    sparse = model.encode_sparse(TEXTS)
    assert_close(sparse.dot(sparse.texts(0, 2)), all_scores, np.full(all_scores.shape, 1e-5), label="lexical")


def test_colbert_score_is_the_mean_of_the_highest_products() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        query, document = (
            rng.standard_normal((int(rng.integers(1, most)), 128), dtype=np.float32) / np.float32(11)
            for most in (64, 300)
        )
        score = BGEM3Encoder.colbert_score(query, document)
        assert score == float(maxsim(query, document)[0, 0]) / len(query)
        exact = (query.astype(np.float64) @ document.T.astype(np.float64)).max(axis=1).mean()
        assert abs(score - exact) < 3e-7
    none = np.zeros((0, 128), np.float32)
    assert BGEM3Encoder.colbert_score(none, document) == BGEM3Encoder.colbert_score(query, none) == 0
    with pytest.raises(TypeError, match=r"^BGEM3Encoder\.colbert_score: query must be an array of floats \[T, D\]"):
        BGEM3Encoder.colbert_score([query], document)  # type: ignore[arg-type]


def test_refusals(home: Path, tmp_path: Path) -> None:
    model = BGEM3Encoder.from_pretrained(home)
    with pytest.raises(TypeError, match=r"BGEM3Encoder\.encode: texts must be str; got int at 1"):
        model.encode(["a", 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="must be 3 numbers whose sums are not 0"):
        model.compute_score([("a", "b")], weights_for_different_modes=(0, 0, 1))
    with pytest.raises(ValueError, match="must be pairs of texts; got one text at 1"):
        model.compute_score([("a", "b"), "ab"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"compute_score: sentence_pairs must be pairs of texts; got 3"):
        model.compute_score(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must both be dicts or lists; got dict and list"):
        model.compute_lexical_matching_score({}, [])
    for wrong in ({"7": "x"}, [{}, 3], [{"7": None}]):
        good: Any = {} if isinstance(wrong, dict) else [{}]
        with pytest.raises(TypeError, match="lexical_weights_2 must be dicts of numbers, as encode returns them; got"):
            model.compute_lexical_matching_score(good, wrong)  # type: ignore[arg-type]
    pooled = tiny_sparse.write_bge(tmp_path)
    (pooled / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    with pytest.raises(ValueError, match=r"modules\.json must have Pooling of cls, and Normalize; got mean"):
        BGEM3Encoder.from_pretrained(pooled)
    named = '{"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]"}'
    (tiny_sparse.write_bge(tmp_path / "named") / "tokenizer_config.json").write_text(named)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json must name pad_token, unk_token"):
        BGEM3Encoder.from_pretrained(tmp_path / "named")
    path = home / "sparse_linear.safetensors"
    raw = path.read_bytes()
    try:
        path.unlink()
        with pytest.raises(FileNotFoundError, match=r"sparse_linear\.pt is a pickle, which is not read; .*torch\.load"):
            BGEM3Encoder.from_pretrained(home)
        safetensors.save_file({"weight": torch.ones(2, 24), "bias": torch.ones(2)}, path)
        with pytest.raises(ValueError, match="must have one number for a token; got 2"):
            BGEM3Encoder.from_pretrained(home)
        safetensors.save_file({"weight": torch.ones(1, 23), "bias": torch.ones(1)}, path)
        with pytest.raises(ValueError, match=r"weight \[1, 23\] instead of \[1, 24\]"):
            BGEM3Encoder.from_pretrained(home)
    finally:
        path.write_bytes(raw)
