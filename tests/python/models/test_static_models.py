"""Static models: the mean of the rows of tokens in a table, in the files of sentence-transformers and model2vec."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers
from checkpoints import write_folder
from model_files import assert_not_loaded
from safetensors.numpy import save_file
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.sentence_transformers import SentenceTransformer

Array = np.ndarray[Any, Any]
TEXTS = ["the dog", "", "abba a dog", "unknown", "the " * 50, "[CLS] a"]
RNG = np.random.default_rng(5)
WORDS = RNG.standard_normal((25, 12)).astype(np.float32)
STATIC = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
NORMALIZE = {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}


def _write(
    folder: Path, tensors: dict[str, Array], normalize: bool = False, place: str = "", cut_at: int = 0, **files: Any
) -> Path:
    library = tiny_tokenizers.word_piece()
    if cut_at:
        library.enable_truncation(cut_at)
    modules = [{"idx": 0, "name": "0", "path": place, "type": STATIC}, *([NORMALIZE] if normalize else [])]
    home = folder / place
    write_folder(folder, {"modules.json": modules} | files)
    home.mkdir(parents=True, exist_ok=True)
    (home / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, home / "model.safetensors")
    return folder


def _expected(words: Array, texts: list[str], cut_at: int | None = None, normalize: bool = False) -> Array:
    library = tiny_tokenizers.word_piece()
    rows = [words[library.encode(text, add_special_tokens=False).ids[:cut_at]].astype(np.float64) for text in texts]
    means = np.stack([row.mean(0) if len(row) else np.zeros(words.shape[1]) for row in rows])
    if normalize:
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return means


@pytest.mark.parametrize(
    ("place", "normalize", "cut_at"), [("", False, 0), ("0_StaticEmbedding", True, 7), (".", True, 0)]
)
def test_means_of_rows(tmp_path: Path, place: str, normalize: bool, cut_at: int) -> None:
    home = _write(tmp_path / "model", {"embedding.weight": WORDS}, normalize, place, cut_at)
    model = SentenceEncoder.from_pretrained(home)
    embeddings = model.encode(TEXTS)
    expected = _expected(WORDS, TEXTS, cut_at or None, normalize)
    assert_close(embeddings, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label="embeddings")
    alone = np.stack([model.encode(text, num_threads=1) for text in TEXTS])
    assert_same_bits(alone, embeddings)
    assert_same_bits(pickle.loads(pickle.dumps(model)).encode(TEXTS), embeddings)
    assert_same_bits(SentenceTransformer(str(home)).encode(TEXTS), embeddings)
    assert_same_bits(model.encode(TEXTS, truncate_dim=5), embeddings[:, :5])
    assert (model.embed_dim, model.num_layers, model.num_heads, model.vocab_size) == (12, 0, 0, 25)
    assert model.weight_bytes == {"float32": WORDS.nbytes}
    assert model.count_tokens(TEXTS[:3]).tolist() == [2, 0, 6]
    model.max_length = 2
    assert_same_bits(model.encode(["the dog"]), embeddings[:1])
    assert_close(model.encode("the dog the"), embeddings[0], EMBEDDING_BOUND, label="cut")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    home = _write(tmp_path / "model", {"embedding.weight": WORDS})
    found = SentenceEncoder.from_pretrained(home, dtype=dtype).encode(TEXTS)
    assert found.dtype == np.float32
    assert_close(found, _expected(WORDS, TEXTS), 0.05, label=dtype)
    assert_same_bits(SentenceEncoder.from_pretrained(home).astype(dtype).encode(TEXTS), found)


def test_tables_of_model2vec(tmp_path: Path) -> None:
    """Tokens can share rows, have factors, and have rows in 8 or 16 bits."""
    rows = RNG.standard_normal((5, 12)).astype(np.float32)
    mapping, weights = RNG.integers(0, 5, 25), RNG.random(25)
    whole = (rows[mapping] * weights[:, None]).astype(np.float32)
    settings = {"config.json": {"model_type": "model2vec", "normalize": False}}
    tensors = {"embeddings": rows, "mapping": mapping, "weights": weights}
    model = SentenceEncoder.from_pretrained(_write(tmp_path / "shared", tensors, **settings))
    direct = SentenceEncoder.from_pretrained(_write(tmp_path / "direct", {"embedding.weight": whole}))
    assert_same_bits(model.encode(TEXTS), direct.encode(TEXTS))
    for dtype, table in {"int8": np.round(WORDS * 30), "float16": WORDS}.items():
        stored = table.astype(dtype)
        model = SentenceEncoder.from_pretrained(_write(tmp_path / dtype, {"embeddings": stored}, **settings))
        expected = _expected(stored, TEXTS)
        assert_close(model.encode(TEXTS), expected, EMBEDDING_BOUND * np.maximum(abs(expected), 1), label=dtype)


@pytest.mark.parametrize("normalize", [False, True])
def test_without_modules_json(tmp_path: Path, normalize: bool) -> None:
    settings = {"config.json": {"model_type": "model2vec", "normalize": normalize}, "modules.json": None}
    home = _write(tmp_path / "old", {"embeddings": WORDS}, **settings)
    (home / "modules.json").unlink(missing_ok=True)
    new = _write(tmp_path / "new", {"embeddings": WORDS}, normalize)
    assert_same_bits(*(SentenceEncoder.from_pretrained(one).encode(TEXTS) for one in (home, new)))


def test_refusals(tmp_path: Path) -> None:
    home = _write(tmp_path / "model", {"embedding.weight": WORDS})
    with pytest.raises(ValueError, match=r"from_pretrained: weight_dtype is for layers, .* got 'int8'"):
        SentenceEncoder.from_pretrained(home, weight_dtype="int8")
    model = SentenceEncoder.from_pretrained(home)
    with pytest.raises(ValueError, match="a static model has no layers, and no attention weights"):
        model.attention_weights("the dog")
    with pytest.raises(ValueError, match=r"tokens must be .* less than 25; got 25 at 1"):
        model.encode_tokens([[3, 25]])
    damaged: dict[str, dict[str, Array]] = {
        "must hold embedding.weight": {"words": WORDS},
        "perhaps mapping and weights": {"embeddings": WORDS, "other": WORDS},
        "must have 2 axes": {"embedding.weight": WORDS[0]},
        "must hold finite numbers": {"embedding.weight": np.where(WORDS > 1, np.nan, WORDS)},
        "mapping must be I32 or I64; got F32": {"embeddings": WORDS, "mapping": WORDS[0]},
        "mapping must have rows of embeddings, less than 25": {"embeddings": WORDS, "mapping": np.array([25] * 25)},
        "weights must be 25 finite numbers": {"embeddings": WORDS, "weights": np.ones(24)},
        "the tokenizer has 25 tokens, more than vocab_size, 24": {"embedding.weight": WORDS[:-1]},
        "F64 instead of F32": {"embedding.weight": WORDS.astype(np.float64)},
    }
    for i, (message, tensors) in enumerate(damaged.items()):
        assert_not_loaded(_write(tmp_path / str(i), tensors), message)


def test_against_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    tokenizer = tiny_tokenizers.word_piece()
    static = modules.StaticEmbedding(tokenizer, embedding_weights=WORDS)
    theirs = library.SentenceTransformer(modules=[static, modules.Normalize()], prompts={"query": "the "})
    theirs.save_pretrained(str(tmp_path))
    assert json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))[0]["type"] == STATIC
    ours = SentenceTransformer(str(tmp_path))
    for options in ({}, {"prompt_name": "query"}, {"truncate_dim": 5, "normalize_embeddings": True}):
        expected = theirs.encode(TEXTS, **options)
        assert_close(ours.encode(TEXTS, **options), expected, EMBEDDING_BOUND, label=str(options))
