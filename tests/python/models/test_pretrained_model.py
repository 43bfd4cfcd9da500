"""Properties and conversions of `PretrainedModel`, which all model classes share, and the names that have changed."""

from pathlib import Path

import numpy as np
import pytest
import tiny_bert
import tiny_classifiers

from mha_native.models import CausalLM, SentenceEncoder, TextClassifier, TokenClassifier

TEXTS = ["the dog", "a cat"]


@pytest.fixture
def encoder(tmp_path: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])
def test_a_model_is_quantized_as_it_is_opened(weight_dtype: str, encoder: SentenceEncoder, tmp_path: Path) -> None:
    opened = SentenceEncoder.from_pretrained(tmp_path, weight_dtype=weight_dtype)
    quantized = encoder.quantize(weight_dtype)
    np.testing.assert_array_equal(quantized.encode(TEXTS), opened.encode(TEXTS))
    assert repr(quantized) == repr(opened)
    assert (quantized.weight_dtype, quantized.dtype, encoder.weight_dtype) == (weight_dtype, np.float32, "float32")


def test_a_model_of_another_class_is_refused_with_the_name_of_that_class(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path)
    with pytest.raises(ValueError, match=r"must be 'gemma2' or .*; got 'bert', which SentenceEncoder opens$"):
        CausalLM.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json must be a directory with config\.json; it is"):
        SentenceEncoder.from_pretrained(tmp_path / "tokenizer.json")


def test_a_model_in_16_bits_is_not_quantized(encoder: SentenceEncoder) -> None:
    with pytest.raises(TypeError, match=r"^SentenceEncoder\.quantize: weight_dtype of a layer in float16 must be"):
        encoder.astype("float16").quantize("int8")


def test_a_converted_model_has_settings_of_its_own(encoder: SentenceEncoder) -> None:
    other = encoder.astype("float64")
    other.max_length, other.truncate_dim = 5, 3
    assert (encoder.max_length, encoder.embed_dim, other.max_length, other.embed_dim) == (20, 24, 5, 3)


def test_sizes(encoder: SentenceEncoder) -> None:
    sizes = encoder.embed_dim, encoder.num_layers, encoder.num_heads, encoder.vocab_size, encoder.max_length
    assert sizes == (24, 2, 3, 37, 20)


@pytest.mark.parametrize("which", [TextClassifier, TokenClassifier])
def test_classifiers_have_them_too(which: type[TextClassifier] | type[TokenClassifier], tmp_path: Path) -> None:
    model = which.from_pretrained(tiny_classifiers.write(tmp_path, tokens=which is TokenClassifier))
    assert (model.embed_dim, model.num_layers, model.num_heads, model.max_length) == (24, 2, 3, 20)
    assert model.quantize("int4").weight_dtype == "int4"
    assert model.quantize("int8").weight_dtype == model.quantize("int8").astype("float32").weight_dtype == "int8"
    assert model.num_labels == len(model.labels)


def test_names_that_have_changed_warn(tmp_path: Path) -> None:
    tiny_classifiers.write(tmp_path)
    with pytest.deprecated_call(match=r"^TextClassifier\.from_pretrained: directory= is deprecated; use model="):
        model = TextClassifier.from_pretrained(directory=tmp_path)
    with pytest.deprecated_call(match=r"^TextClassifier\.scores is deprecated; use predict_proba"):
        scores = model.scores(TEXTS)
    np.testing.assert_array_equal(scores, model.predict_proba(TEXTS))
    with pytest.deprecated_call(match="predict_proba_batches"):
        np.testing.assert_array_equal(next(model.score_batches(TEXTS)), scores)
    with pytest.deprecated_call(match=r"^TextClassifier\.max_seq_length is deprecated; use max_length"):
        assert model.max_seq_length == model.max_length


def test_the_old_name_of_a_setting_sets_it(encoder: SentenceEncoder) -> None:
    with pytest.deprecated_call(match="max_length"):
        encoder.max_seq_length = 7
    assert encoder.max_length == 7


def test_an_argument_by_both_names_is_refused(tmp_path: Path) -> None:
    with (
        pytest.deprecated_call(),
        pytest.raises(TypeError, match="directory is the old name of model; give one of them"),
    ):
        SentenceEncoder.from_pretrained(model=tmp_path, directory=tmp_path)
