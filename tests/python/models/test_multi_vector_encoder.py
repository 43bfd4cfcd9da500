"""MultiVectorEncoder: every layout and switch against sentence-transformers; scores, rankings, and refused files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")
tiny = pytest.importorskip("tiny_multi_vector")

from mha_native.models import MultiVectorEncoder, TokenEmbeddings  # noqa: E402
from mha_native.sentence_transformers import MultiVectorEncoder as DropIn  # noqa: E402

QUERIES = ["a dog", "", "a b c d e f g h i j k l m n o p q r s t u v", "cat ! b", "x unknown y"]
DOCUMENTS = ["the cat ! dog", "", " ".join("abcdefghijklmnopqrstuvwxyz"), "! !", "z x", "dog unknown, cat"]

FIXED = {"strategy": "fixed", "attend": False, "token": None, "length": 8}
TANH = "torch.nn.modules.activation.Tanh"
Write = Callable[..., Path]
CASES: dict[str, tuple[Write, dict[str, Any]]] = {
    "sentence-transformers": (tiny.write_sentence_transformers, {}),
    "lengths": (tiny.write_sentence_transformers, {"query_length": 6, "document_length": 9}),
    "expansion": (tiny.write_sentence_transformers, {"query_expansion": FIXED}),
    "expansion, attended": (tiny.write_sentence_transformers, {"query_expansion": FIXED | {"attend": True}}),
    "expansion by a token": (tiny.write_sentence_transformers, {"query_expansion": FIXED | {"token": "cat"}}),
    "expansion at least": (tiny.write_sentence_transformers, {"query_expansion": FIXED | {"strategy": "min"}}),
    "expansion and length": (
        tiny.write_sentence_transformers,
        {"query_expansion": FIXED | {"strategy": "min"}, "query_length": 11},
    ),
    "skipped words": (tiny.write_sentence_transformers, {"mask": {"skiplist_words": ["!", "dog", "nowhere"]}}),
    "skipped in queries": (
        tiny.write_sentence_transformers,
        {"mask": {"skiplist_words": ["dog", "z"], "skiplist_tasks": ["query"]}, "query_expansion": FIXED},
    ),
    "kept tokens": (tiny.write_sentence_transformers, {"mask": {"keep_only_token_ids": [4, 5, 31]}}),
    "bias": (tiny.write_sentence_transformers, {"dense": {"bias": True, "activation_function": TANH}}),
    "residual": (tiny.write_sentence_transformers, {"dense": {"use_residual": True}}),
    "PyLate": (tiny.write_pylate, {}),
    "PyLate, attended": (tiny.write_pylate, {"attend_to_expansion_tokens": True}),
    "PyLate without expansion": (tiny.write_pylate, {"do_query_expansion": False}),
    "PyLate without skipped words": (tiny.write_pylate, {"skiplist_words": [], "query_length": 5}),
    "PyLate without markers": (tiny.write_pylate, {"query_prefix": "", "document_prefix": ""}),
    "PyLate with prompts": (tiny.write_pylate, {"prompts": {"query": "cat ", "document": "b c "}}),
    "PyLate with markers in prompts": (
        tiny.write_pylate,
        {"prompts": {"query": "[Q] ", "document": "[D] b c "}, "similarity_fn_name": "cosine"},
    ),
    "PyLate with a bias": (tiny.write_pylate, {"dense": {"bias": True}}),
    "ColBERT": (tiny.write_colbert, {}),
    "ColBERT, attended": (tiny.write_colbert, {"attend_to_mask_tokens": True, "mask_punctuation": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_and_rankings_are_those_of_sentence_transformers(case: str, tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    if not hasattr(theirs, "MultiVectorEncoder"):
        pytest.skip("sentence-transformers has multi-vector encoders from version 6 on")
    write, settings = CASES[case]
    folder = write(tmp_path, **settings)
    model, other = MultiVectorEncoder.from_pretrained(folder), theirs.MultiVectorEncoder(str(folder))
    found, expected = [], []
    for method, texts in (("encode_query", QUERIES), ("encode_document", DOCUMENTS)):
        found.append(getattr(model, method)(texts))
        expected.append(getattr(other, method)(texts, convert_to_numpy=True))
        for i, vectors in enumerate(expected[-1]):
            np.testing.assert_allclose(found[-1].row(i), vectors, atol=1e-5, err_msg=f"{method} {texts[i]}")
    keeps = [i for i, vectors in enumerate(expected[1]) if len(vectors)]  # their scores of nothing differ
    scores = model.scores(*found)[:, keeps]
    np.testing.assert_allclose(scores, other.similarity(expected[0], [expected[1][i] for i in keeps]), atol=1e-4)
    drop_in = DropIn(folder)
    queries = drop_in.encode_query(QUERIES)
    documents = drop_in.encode_document(DOCUMENTS)
    for i, vectors in enumerate(queries):
        np.testing.assert_array_equal(vectors, found[0].row(i))
    if write is tiny.write_pylate and "prompts" not in settings:
        marked = DropIn(folder, prompts={"query": settings.get("query_prefix", "[Q] ")})
        np.testing.assert_array_equal(marked.encode_query("a dog"), queries[0])
    np.testing.assert_array_equal(drop_in.encode_query("a dog", None, None, 2, False), queries[0])
    np.testing.assert_array_equal(drop_in.similarity(queries, documents)[:, keeps], scores)


def test_bits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = MultiVectorEncoder.from_pretrained(tiny.write_pylate(tmp_path))
    for method, texts in ((model.encode_query, QUERIES), (model.encode_document, DOCUMENTS)):
        together = method(texts * 60, num_threads=3)
        for i, text in enumerate(texts):
            alone = method(text, num_threads=1)
            np.testing.assert_array_equal(alone.row(0), together.row(i + 59 * len(texts)))
            assert alone.num_texts == 1
    nothing = model.encode_document([])
    assert nothing.num_texts == 0
    assert nothing.rows.shape == (0, 5)


def test_rank_orders_documents(tmp_path: Path) -> None:
    model = MultiVectorEncoder.from_pretrained(tiny.write_pylate(tmp_path))
    documents = model.encode_document(DOCUMENTS)
    scores = model.encode_query(QUERIES[0]).scores(documents)[0]
    ranking = model.rank(QUERIES[0], DOCUMENTS, return_documents=True)
    assert [entry["corpus_id"] for entry in ranking] == np.argsort(-scores, kind="stable").tolist()
    assert ranking[0]["text"] == DOCUMENTS[ranking[0]["corpus_id"]]
    assert [entry["score"] for entry in ranking] == sorted(scores.tolist(), reverse=True)
    assert model.rank(QUERIES[0], documents, top_k=2) == [
        {name: entry[name] for name in ("corpus_id", "score")} for entry in ranking[:2]
    ]
    quantized = documents.quantized()
    assert quantized.rows.dtype == np.int8
    assert quantized.quantized() is quantized
    np.testing.assert_allclose(model.encode_query(QUERIES[0]).scores(quantized)[0], scores, atol=0.05 * 8)
    for i in range(len(DOCUMENTS)):
        np.testing.assert_allclose(quantized.row(i), documents.row(i), atol=1 / 127)
    with pytest.raises(ValueError, match="return_documents needs texts"):
        model.rank("dog", documents, return_documents=True)
    with pytest.raises(TypeError, match="query must be a str"):
        model.rank(["dog"], documents)  # type: ignore[arg-type]
    narrow = TokenEmbeddings.of_matrices([np.ones((2, 3), np.float32)])
    # Messages name the method that was called, not one that it calls.
    for call, rule in (
        (lambda: model.rank("dog", documents, num_threads=0), "rank: num_threads"),
        (lambda: model.rank("dog", ["the"], num_threads=0), "rank: num_threads"),
        (lambda: model.rank("dog", "the"), "rank: "),
        (lambda: model.scores(documents, documents, num_threads=0), "scores: num_threads"),
        (lambda: model.scores(documents, documents.rows), "scores: documents must be TokenEmbeddings"),
        (lambda: model.scores(documents.rows, documents), "scores: queries must be TokenEmbeddings"),
        (lambda: model.scores(documents, narrow), "scores: queries and documents must have as many features"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^MultiVectorEncoder\.{rule}"):
            call()


def test_mean_scores_and_lengths(tmp_path: Path) -> None:
    folder = tiny.write_sentence_transformers(tmp_path)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarity_fn_name": "meanmaxsim"}))
    model = MultiVectorEncoder.from_pretrained(folder)
    queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    expected = queries.scores(documents) / np.diff(queries.cu_seqlens)[:, None].astype(np.float32)
    np.testing.assert_array_equal(model.scores(queries, documents), expected)
    drop_in = DropIn(folder)
    assert drop_in.similarity_fn_name == "meanmaxsim"
    pairs = drop_in.similarity_pairwise(drop_in.encode_query(QUERIES), drop_in.encode_document(DOCUMENTS[:5]))
    np.testing.assert_array_equal(pairs, np.diagonal(expected))
    model.max_length = 4
    assert np.diff(model.encode_document(DOCUMENTS[2:3]).cu_seqlens).tolist() == [4]
    assert model.max_length == 4


REFUSED: dict[str, tuple[Write, dict[str, Any], str]] = {
    "unknown marker": (tiny.write_pylate, {"query_prefix": "[nowhere]"}, "tokenizer.json must have the prefix"),
    "flag": (tiny.write_pylate, {"do_query_expansion": 1}, "do_query_expansion must be True or False"),
    "length": (tiny.write_pylate, {"document_length": 21}, "document_length must be at most max_position_embeddings"),
    "query length": (tiny.write_pylate, {"query_length": 21}, "query_length must be at most max_position_embeddings"),
    "words": (tiny.write_pylate, {"skiplist_words": "!"}, "skiplist_words must be a list of tokens"),
    "similarity": (tiny.write_pylate, {"similarity_fn_name": "XTR"}, "similarity_fn_name must be 'MaxSim'"),
    "features": (tiny.write_pylate, {"dense": {"in_features": 7}}, "in_features must be"),
    "strategy": (
        tiny.write_sentence_transformers,
        {"query_expansion": FIXED | {"strategy": "all"}},
        "strategy must be 'fixed' or 'min'",
    ),
    "expansion": (tiny.write_sentence_transformers, {"query_expansion": {"size": 3}}, "unknown entries: size"),
    "short queries": (
        tiny.write_sentence_transformers,
        {"query_expansion": FIXED, "query_length": 4},
        "query_length must be at least the length of query_expansion",
    ),
    "tasks": (tiny.write_sentence_transformers, {"mask": {"skiplist_tasks": ["all"]}}, "skiplist_tasks must be of"),
    "mask": (tiny.write_sentence_transformers, {"mask": {"kept": 1}}, "unknown entries: kept"),
    "place": (
        tiny.write_sentence_transformers,
        {"dense": {"module_input_name": "sentence_embedding"}},
        "module_input_name must be 'token_embeddings'",
    ),
    "ColBERT without a length": (tiny.write_colbert, {"doc_maxlen": None}, "doc_maxlen must be an integer"),
    "ColBERT of another size": (tiny.write_colbert, {"dim": 6}, "linear.weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    write, settings, rule = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(rule)):
        MultiVectorEncoder.from_pretrained(write(tmp_path, **settings))


def test_a_normalize_of_whole_texts_is_refused(tmp_path: Path) -> None:
    """Without an entry, or without its file, it scales the embedding of a text, which these models do not have."""
    path = tiny.write_sentence_transformers(tmp_path) / "3_Normalize" / "config.json"
    for change in (lambda: path.write_text("{}"), path.unlink):
        change()
        rule = "3_Normalize/config.json: module_input_name must be 'token_embeddings'; got 'sentence_embedding'"
        with pytest.raises(ValueError, match=re.escape(rule)):
            MultiVectorEncoder.from_pretrained(tmp_path)


def test_other_models_are_refused(tmp_path: Path) -> None:
    tiny_bert = pytest.importorskip("tiny_bert")
    with pytest.raises(ValueError, match="must list Transformer and perhaps"):
        MultiVectorEncoder.from_pretrained(tiny_bert.write(tmp_path))
    found = TokenEmbeddings.of_matrices([], 3)
    assert found.num_texts == 0
    assert found.rows.shape == (0, 3)
    with pytest.raises(TypeError, match="documents must be TokenEmbeddings"):
        found.scores(found.rows)  # type: ignore[arg-type]
