"""The calls that other libraries make of a SentenceTransformer, and what they do with the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS
from tolerance import assert_same_bits

from mha_native import sentence_transformers
from mha_native.models import SentenceEncoder
from mha_native.sentence_transformers import SentenceTransformer, quantize_embeddings

Array = np.ndarray[Any, Any]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_bert.write(tmp_path / "model"))


@pytest.fixture
def expected(directory: str) -> Array:
    return SentenceEncoder.from_pretrained(directory).encode(TEXTS)


@pytest.mark.parametrize("encode_kwargs", [{}, {"normalize_embeddings": True, "batch_size": 64}], ids=str)
def test_langchain_embeddings(encode_kwargs: dict[str, Any], directory: str, expected: Array) -> None:
    # langchain-huggingface 1.2.3, HuggingFaceEmbeddings
    client = SentenceTransformer(directory, cache_folder=None, **{"device": "cpu"})
    embeddings = client.encode(TEXTS, show_progress_bar=False, **encode_kwargs)
    assert not isinstance(embeddings, list)
    np.testing.assert_allclose(embeddings.tolist(), expected, rtol=1e-6)
    one = client.encode([TEXTS[1]], show_progress_bar=False, **encode_kwargs).tolist()[0]
    np.testing.assert_allclose(one, expected[1], rtol=1e-6)


def test_langchain_with_processes(directory: str, expected: Array) -> None:
    # langchain-huggingface 1.2.3, HuggingFaceEmbeddings(multi_process=True)
    client = SentenceTransformer(directory, cache_folder=None)
    pool = client.start_multi_process_pool()
    embeddings = client.encode_multi_process(TEXTS, pool)
    SentenceTransformer.stop_multi_process_pool(pool)
    assert not isinstance(embeddings, list)
    assert_same_bits(np.array(embeddings.tolist(), np.float32), expected)


@pytest.mark.parametrize("max_length", [None, 12])
def test_llama_index(max_length: int | None, directory: str, expected: Array, tmp_path: Path) -> None:
    # llama-index-embeddings-huggingface 0.8.0, HuggingFaceEmbedding
    model = SentenceTransformer(
        directory,
        device="cpu",
        cache_folder=str(tmp_path),
        trust_remote_code=False,
        prompts={"query": "the ", "text": ""},
    )
    if max_length:
        model.max_seq_length = max_length
    assert model.max_seq_length == (max_length or 20)
    arguments: dict[str, Any] = {"batch_size": 10, "normalize_embeddings": True, "show_progress_bar": False}
    found = model.encode(["dog"], prompt_name="query", **arguments).tolist()[0]
    np.testing.assert_allclose(found, expected[2], rtol=1e-6)
    np.testing.assert_allclose(model.encode(["dog"], prompt_name="text", **arguments)[0], expected[1], rtol=1e-6)
    pool = model.start_multi_process_pool(target_devices=None)
    together = model.encode_multi_process(["dog"], pool=pool, prompt_name="query", **arguments)
    model.stop_multi_process_pool(pool=pool)
    np.testing.assert_allclose(together.tolist()[0], expected[2], rtol=1e-6)


def test_chroma(directory: str, expected: Array) -> None:
    # chromadb 1.5.9, SentenceTransformerEmbeddingFunction
    model = SentenceTransformer(model_name_or_path=directory, device="cpu")
    embeddings = model.encode(list(TEXTS), convert_to_numpy=True, normalize_embeddings=False)
    found = [np.array(embedding, dtype=np.float32) for embedding in embeddings]
    assert_same_bits(np.stack(found), expected)


def test_bertopic(directory: str, expected: Array) -> None:
    # bertopic 0.17.4, backend.SentenceTransformerBackend, which is chosen by the name of the type
    model = SentenceTransformer(directory)
    assert "sentence_transformers" in str(type(model))
    embeddings = model.encode(TEXTS, show_progress_bar=False)
    assert isinstance(embeddings, np.ndarray)
    assert_same_bits(embeddings, expected)


def test_keybert(directory: str, expected: Array) -> None:
    # keybert 0.9.0, backend.SentenceTransformerBackend: documents, and candidates as an array of scikit-learn
    model = SentenceTransformer(directory)
    encode_kwargs: dict[str, Any] = {"batch_size": 16}
    encode_kwargs.update({"show_progress_bar": False})
    assert_same_bits(model.encode(TEXTS, **encode_kwargs), expected)
    assert_same_bits(model.encode(np.array(TEXTS, object), **encode_kwargs), expected)


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_haystack(precision: Any, directory: str, expected: Array) -> None:
    # sentence-transformers-haystack 2.0.0, SentenceTransformersTextEmbedder and ...DocumentEmbedder
    model = SentenceTransformer(
        model_name_or_path=directory,
        device="cpu",
        token=None,
        trust_remote_code=False,
        revision=None,
        local_files_only=False,
        truncate_dim=None,
        model_kwargs=None,
        processor_kwargs={"model_max_length": 20},
        config_kwargs=None,
        backend="torch",
    )
    model.max_seq_length = 20
    arguments: dict[str, Any] = {"batch_size": 32, "show_progress_bar": False, "normalize_embeddings": False}
    found = model.encode(TEXTS, precision=precision, **arguments).tolist()
    assert found == quantize_embeddings(expected, precision).tolist()
    if precision in ("int8", "uint8"):  # with the argument quantization_ranges
        ranges = [[-1.0] * 24, [1.0] * 24]
        embeddings = model.encode(TEXTS[:1], precision="float32", **arguments)
        quantized = quantize_embeddings(embeddings, precision=precision, ranges=np.asarray(ranges))
        assert not isinstance(quantized, list)
        assert np.array(quantized.tolist()).shape == (1, 24)


def test_haystack_diversity_ranker(directory: str, expected: Array) -> None:
    # sentence-transformers-haystack 2.0.0, SentenceTransformersDiversityRanker
    torch = pytest.importorskip("torch")
    model = SentenceTransformer(
        model_name_or_path=directory, device="cpu", token=None, model_kwargs=None, processor_kwargs=None,
        config_kwargs=None, backend="torch",
    )  # fmt: skip
    documents = model.encode(TEXTS, convert_to_tensor=True)
    documents = documents / torch.norm(documents, p=2, dim=-1).unsqueeze(-1)
    query = model.encode(["dog"], convert_to_tensor=True)
    np.testing.assert_allclose((documents @ query.T)[:, 0].numpy(), expected @ expected[1], atol=1e-6)


def test_txtai(directory: str, expected: Array) -> None:
    # txtai 9.14.0, vectors.STVectors
    model = SentenceTransformer(directory, device="cpu")
    for encode in (model.encode_query, model.encode_document, model.encode):
        assert_same_bits(encode(TEXTS, pool=None, batch_size=32), expected)


def test_langchain_text_splitter(directory: str) -> None:
    # langchain-text-splitters 1.1.3, SentenceTransformersTokenTextSplitter
    model = SentenceTransformer(directory, **{})
    tokenizer = model.tokenizer
    assert model.max_seq_length == 20
    text = " ".join("abcdefghijklmnopqrstuvwxyz")
    tokens = tokenizer.encode(text, max_length=2**32, truncation="do_not_truncate")
    assert isinstance(tokens, list)
    assert tokens == tiny_bert.ids(text, 100)
    assert tokenizer.decode(tokens[1:-1][3:5]) == "d e"


def test_names_that_they_import() -> None:
    # the libraries above, and langchain-huggingface 1.2.3 as attributes of the module
    assert {"SentenceTransformer", "SimilarityFunction", "quantize_embeddings"} <= set(sentence_transformers.__all__)
