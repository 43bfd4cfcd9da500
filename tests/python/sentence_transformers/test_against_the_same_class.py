"""SentenceTransformer beside that of sentence-transformers 6.2: the same results for the same arguments."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tolerance import EMBEDDING_BOUND

from mha_native.sentence_transformers import SentenceTransformer, SimilarityFunction, quantize_embeddings

theirs = pytest.importorskip("sentence_transformers", minversion="6.2")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *map("##{}".format, "abcdefghij"), "the", "dog"]
TEXTS = ["", "a", "the dog", "THE Dog", "abc fade jab", "the " * 50, "bad unknown [MASK] cab", "dog. dog! dog?"]

Models = tuple[SentenceTransformer, Any]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and settings in its files, as the other library saves it."""
    transformer, directory = (tmp_path_factory.mktemp(name) for name in ("transformer", "model"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).eval().save_pretrained(transformer)
    vocab = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab, model_max_length=20).save_pretrained(transformer)
    model = theirs.SentenceTransformer(
        modules=[modules.Transformer(str(transformer)), modules.Pooling(24, "mean")],
        device="cpu", prompts={"query": "the dog: ", "passage": "a "}, default_prompt_name="passage", truncate_dim=16,
    )  # fmt: skip
    model.save(str(directory))
    return directory


@pytest.fixture(scope="module")
def models(directory: Path) -> Models:
    return SentenceTransformer(str(directory), device="cpu"), theirs.SentenceTransformer(str(directory), device="cpu")


def assert_same(actual: Any, expected: Any) -> None:
    """The same type and shape, and numbers but for rounding, by which integers may differ by 1."""
    if isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
        return
    assert type(actual) is type(expected)
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_allclose(actual, expected, rtol=EMBEDDING_BOUND, atol=EMBEDDING_BOUND)
    else:
        assert np.abs(actual.astype(int) - expected.astype(int)).max() <= 1


SAME: list[dict[str, Any]] = [
    {}, {"prompt_name": "query"}, {"prompt": "dog "}, {"prompt": "dog ", "prompt_name": "query"}, {"prompt": ""},
    {"batch_size": 3}, {"normalize_embeddings": True}, {"truncate_dim": 5}, {"truncate_dim": 5, "precision": None},
    {"truncate_dim": 5, "normalize_embeddings": True}, {"truncate_dim": 100}, {"convert_to_tensor": True},
    {"convert_to_numpy": False}, {"convert_to_tensor": True, "convert_to_numpy": False},
    {"device": "cpu"}, {"precision": "int8"}, {"precision": "uint8"}, {"precision": "int8", "convert_to_tensor": True},
    {"output_value": "token_embeddings", "convert_to_numpy": False, "prompt_name": "query"},
]  # fmt: skip


@pytest.mark.parametrize("arguments", SAME, ids=str)
@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_the_same_results(method: str, arguments: dict[str, Any], models: Models) -> None:
    ours, other = (getattr(model, method) for model in models)
    for inputs in (TEXTS, tuple(TEXTS), np.array(TEXTS), [], *([TEXTS[5]] * ("int8" not in str(arguments)))):
        if "token_embeddings" in str(arguments) and len(inputs) == 0:
            continue
        assert_same(ours(inputs, **arguments), other(inputs, **arguments))


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_the_same_bits(precision: Any, models: Models) -> None:
    ours, other = (model.encode(TEXTS, precision=precision) for model in models)
    assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
    differing = np.unpackbits((ours ^ other).view(np.uint8)).sum()
    assert differing <= 1  # of 128: a number next to 0


def test_the_same_dicts(models: Models) -> None:
    ours, other = (model.encode(TEXTS[4], output_value=None, convert_to_numpy=False) for model in models)
    for name, value in ours.items():
        assert_same(value, other[name])


REFUSED: list[dict[str, Any]] = [
    {"batch_size": 0}, {"foo": 1}, {"precision": "int4"}, {"prompt_name": "none"}, {"chunk_size": 0, "device": ["cpu"]},
    {"inputs": ["a"], "precision": "int8"},
]  # fmt: skip


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_the_same_errors(arguments: dict[str, Any], models: Models) -> None:
    for model in models:
        with pytest.raises(ValueError, match=r"."):
            model.encode(**{"inputs": TEXTS} | arguments)


def test_the_same_names_and_defaults() -> None:
    for name in ("encode", "encode_multi_process"):
        ours, other = (
            inspect.signature(getattr(kind, name)) for kind in (SentenceTransformer, theirs.SentenceTransformer)
        )
        assert list(ours.parameters) == list(other.parameters)
        for parameter in ours.parameters.values():
            if parameter.name != "inputs":  # which may have its old name
                assert parameter.default == other.parameters[parameter.name].default
    ours, other = (inspect.signature(kind.__init__) for kind in (SentenceTransformer, theirs.SentenceTransformer))
    assert list(other.parameters) == [name for name in ours.parameters if name != "tokenizer_kwargs"]
    for name, parameter in other.parameters.items():
        assert ours.parameters[name].default == parameter.default
        assert ours.parameters[name].kind == parameter.kind


def test_the_same_attributes(models: Models) -> None:
    for name in ("prompts", "default_prompt_name", "truncate_dim", "max_seq_length", "similarity_fn_name"):
        ours, other = (getattr(model, name) for model in models)
        assert ours == other, name
    for name in ("get_embedding_dimension", "get_sentence_embedding_dimension", "get_max_seq_length"):
        ours, other = (getattr(model, name)() for model in models)
        assert ours == other, name
    assert models[0].device == str(models[1].device)


def test_the_same_tokens(models: Models) -> None:
    ours, other = (model.tokenizer for model in models)
    assert len(ours) == len(other)
    for text in TEXTS:
        tokens = ours.encode(text, max_length=2**32, truncation="do_not_truncate")
        assert tokens == other.encode(text, max_length=2**32, truncation="do_not_truncate")
        assert ours.tokenize(text) == other.tokenize(text)
        for skips in (False, True):
            assert ours.decode(tokens, skip_special_tokens=skips) == other.decode(tokens, skip_special_tokens=skips)


def test_the_same_after_settings_change(directory: Path) -> None:
    both = [kind(str(directory), device="cpu") for kind in (SentenceTransformer, theirs.SentenceTransformer)]
    for name, value in (
        ("max_seq_length", 6), ("truncate_dim", None), ("default_prompt_name", None), ("truncate_dim", 3),
        ("prompts", {"query": "dog "}), ("similarity_fn_name", "euclidean"),
    ):  # fmt: skip
        for model in both:
            setattr(model, name, value)
        for method in ("encode", "encode_query", "encode_document"):
            ours, other = (getattr(model, method)(TEXTS) for model in both)
            assert_same(ours, other)
        assert both[0].get_embedding_dimension() == both[1].get_embedding_dimension()


def test_the_same_constructor_settings(directory: Path) -> None:
    arguments: list[dict[str, Any]] = [
        {"prompts": {"query": "b "}, "default_prompt_name": "query"}, {"truncate_dim": 5}, {"prompts": {"query": None}},
        {"prompts": {"text": None}}, {"processor_kwargs": {"model_max_length": 7}}, {"similarity_fn_name": "manhattan"},
        {"tokenizer_kwargs": {"model_max_length": 7}}, {"similarity_fn_name": theirs.SimilarityFunction.DOT_PRODUCT},
    ]  # fmt: skip
    for given in arguments:
        ours, other = (kind(str(directory), **given) for kind in (SentenceTransformer, theirs.SentenceTransformer))
        assert ours.prompts == other.prompts
        assert ours.similarity_fn_name == other.similarity_fn_name
        assert_same(ours.encode(TEXTS), other.encode(TEXTS))


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_same_scores(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(n, 24).to(getattr(torch, dtype)) for n in (6, 4))
    full, pairs = (
        [getattr(kind, method)(name) for kind in (SimilarityFunction, theirs.SimilarityFunction)]
        for method in ("to_similarity_fn", "to_similarity_pairwise_fn")
    )
    for one, other in ((a, b), (a[0], b), (a, b[0]), (a[0], b[0]), (list(a), list(b)), (a[:0], b)):
        assert_same(*(score(one, other) for score in full))
    for one, other in ((a[:4], b), (a[0], b[0])):
        assert_same(*(score(one, other) for score in pairs))


def test_the_same_quantization(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    embeddings = np.random.default_rng(0).standard_normal((200, 21), np.float32)
    ranges = np.stack([embeddings[:50].min(axis=0), embeddings[:50].max(axis=0)])
    for precision in ("float32", "int8", "uint8", "binary", "ubinary"):
        for given in (embeddings, torch.from_numpy(embeddings), list(embeddings), embeddings.astype(np.float64)):
            for arguments in ({}, {"ranges": ranges}, {"calibration_embeddings": embeddings[:50]}):
                ours, other = (
                    quantize(given, precision, **arguments)
                    for quantize in (quantize_embeddings, theirs.quantize_embeddings)
                )
                assert ours.dtype == other.dtype
                np.testing.assert_array_equal(ours, other)


def test_a_pretrained_model(model_directory: Path) -> None:
    both = [kind(str(model_directory), device="cpu") for kind in (SentenceTransformer, theirs.SentenceTransformer)]
    texts = [*tiny_bert.TEXTS, "A dog was hungry.", "word " * 300, "Straße, naïve façade — 東京 😀"]
    arguments: list[dict[str, Any]] = [
        {},
        {"truncate_dim": 64, "normalize_embeddings": True},
        {"convert_to_tensor": True},
    ]
    for given in arguments:
        ours, other = (model.encode(texts, **given) for model in both)
        assert_same(ours, other)
    assert_same(both[0].similarity(ours, ours), both[1].similarity(other, other))
