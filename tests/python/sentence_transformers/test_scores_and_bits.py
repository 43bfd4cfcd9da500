"""Similarities by hand, and embeddings in 8 bits and 1 bit."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from mha_native.sentence_transformers import SimilarityFunction, quantize_embeddings

rng = np.random.default_rng(0)
A, B = rng.standard_normal((5, 7), np.float32), rng.standard_normal((3, 7), np.float32)

BY_HAND = {
    "cosine": lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_scores(name: str, dtype: str) -> None:
    a, b = (10 * A).astype(dtype), (10 * B).astype(dtype)
    exact = np.array([[BY_HAND[name](x, y) for y in b.astype(np.float64)] for x in a.astype(np.float64)])
    score, pairwise = SimilarityFunction.to_similarity_fn(name), SimilarityFunction.to_similarity_pairwise_fn(name)
    scores = score(a, b)
    assert scores.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(score(list(a), b.tolist()), exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(score(a[0], b[0]), exact[:1, :1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pairwise(a[:3], b), exact.diagonal(), rtol=1e-5, atol=1e-5)
    assert pairwise(a[0], b[0]).shape == ()
    assert score(a[:0], b).shape == (0, 3)
    assert score(a, b[:0]).shape == (5, 0)


def test_an_embedding_of_zeros_is_like_nothing() -> None:
    assert SimilarityFunction.to_similarity_fn("cosine")(np.zeros((1, 7)), A).tolist() == [[0.0] * 5]


def test_names_of_functions() -> None:
    assert SimilarityFunction("dot") is SimilarityFunction.DOT is SimilarityFunction.DOT_PRODUCT
    assert SimilarityFunction.possible_values() == list(BY_HAND)
    assert SimilarityFunction.to_similarity_fn(SimilarityFunction.DOT)(A, B).shape == (5, 3)
    for make in (SimilarityFunction.to_similarity_fn, SimilarityFunction.to_similarity_pairwise_fn):
        with pytest.raises(ValueError, match=r"^SimilarityFunction.to_similarity.*got 'maxsim'"):
            make("maxsim")


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_eight_bits(precision: Any) -> None:
    last = 255 / 64  # for steps of 1/64, which have no rounding errors
    ranges = np.array([[-1.0, 0.0, 5.0], [last - 1, last, 5.0]])
    embeddings = np.array([[-1, 0, 5], [last - 1, last, 5], [-9, 9, 4], [9, -9, 6], [0, 0.02, 5.5]], np.float32)
    steps = np.array([[0, 0, 0], [255, 255, 0], [0, 255, 0], [255, 0, 1], [64, 1, 0]])
    expected = steps - (128 if precision == "int8" else 0)
    quantized = quantize_embeddings(embeddings, precision, ranges)
    assert quantized.dtype == precision
    np.testing.assert_array_equal(quantized, expected)
    np.testing.assert_array_equal(quantize_embeddings(list(embeddings), precision, ranges), expected)
    np.testing.assert_array_equal(quantize_embeddings(embeddings[0], precision, ranges), expected[0])
    calibrated = quantize_embeddings(embeddings, precision, calibration_embeddings=ranges)
    np.testing.assert_array_equal(calibrated, expected)
    assert quantize_embeddings(embeddings[:0], precision).shape == (0, 3)


def test_one_bit() -> None:
    embeddings = np.array([[1, -1, 0, 2, -0.0, 1, 1, 1, 3], [-1] * 9], np.float32)
    expected = np.array([[0b10010111, 0b10000000], [0, 0]], np.uint8)
    unsigned = quantize_embeddings(embeddings, "ubinary")
    signed = quantize_embeddings(embeddings, "binary")
    assert (unsigned.dtype, signed.dtype) == (np.uint8, np.int8)
    np.testing.assert_array_equal(unsigned, expected)
    np.testing.assert_array_equal(signed, expected.astype(int) - 128)


def test_ranges_of_few_embeddings_are_said(caplog: pytest.LogCaptureFixture) -> None:
    many = rng.standard_normal((100, 4), np.float32)
    quantize_embeddings(many, "int8")
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        quantize_embeddings(many[:99], "int8")
    assert "the ranges of int8 come from 99 embeddings only" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"embeddings": A, "precision": "int4"}, "precision must be one of float32, int8, .* got 'int4'"),
        ({"embeddings": A.astype(np.int8), "precision": "int8"}, "embeddings must be floating-point .* got int8"),
        ({"embeddings": A[:1], "precision": "uint8"}, r"embeddings must be several .* got \(1, 7\)"),
        ({"embeddings": A, "precision": "int8", "ranges": A}, r"ranges must be \[2, 7\]; got \(5, 7\)"),
    ],
    ids=["precision", "integers", "one", "ranges"],
)
def test_what_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^quantize_embeddings: {problem}"):
        quantize_embeddings(**arguments)
