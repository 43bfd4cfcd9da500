"""This library's Transformer as the first module of models of sentence-transformers, beside that package's own.

Skipped without it.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("sentence_transformers", minversion="6")

import tiny_bert  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling  # noqa: E402
from tolerance import assert_same_bits  # noqa: E402

from mha_native.models import SentenceEncoder  # noqa: E402
from mha_native.sentence_transformers import Transformer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

BOUND = 1e-5  # of embeddings of length 1, and of vectors of tokens, whose numbers are about 1

TEXTS = ["A dog was hungry.", "", "naïve façade: 東京 😀", "stocks " * 400, "  two  blanks\tand\na line "]


def _ours(directory: Path, pooling: str = "mean", **arguments: Any) -> Any:
    first = Transformer(directory, **arguments)
    modules = [first, Pooling(first.get_embedding_dimension(), pooling), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


@pytest.fixture(scope="module")
def theirs(model_directory: Path) -> Any:
    return SentenceTransformer(str(model_directory), device="cpu")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_bert.write(tmp_path / "tiny", files={"sentence_bert_config.json": {"max_seq_length": 15}})


def test_embeddings_are_those_of_the_package(model_directory: Path, theirs: Any) -> None:
    ours = _ours(model_directory)
    assert (ours.max_seq_length, ours.get_embedding_dimension()) == (theirs.max_seq_length, 384)
    for options in ({}, {"prompt": "query: "}, {"batch_size": 2}, {"truncate_dim": 100}, {"convert_to_tensor": True}):
        found, expected = (torch.as_tensor(model.encode(TEXTS, **options)) for model in (ours, theirs))
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < BOUND, options
    assert ours.similarity(ours.encode(TEXTS[:1]), theirs.encode(TEXTS[:1])) > 1 - BOUND


def test_vectors_of_tokens_are_those_of_the_package(model_directory: Path, theirs: Any) -> None:
    ours = _ours(model_directory)
    found, expected = (model.encode(TEXTS, output_value="token_embeddings") for model in (ours, theirs))
    for mine, other in zip(found, expected, strict=True):
        assert mine.shape == other.shape
        assert (mine - other).abs().max() < BOUND


@pytest.mark.parametrize("pooling", ["cls", "max", "lasttoken", "weightedmean"])
def test_other_poolings_without_a_prompt(pooling: str, model_directory: Path) -> None:
    models = []
    for first in (Transformer(model_directory), SentenceTransformer(str(model_directory), device="cpu")[0]):
        models.append(SentenceTransformer(modules=[first, Pooling(384, pooling, include_prompt=False)], device="cpu"))
    found, expected = (model.encode(TEXTS, prompt="search for: ") for model in models)
    assert np.abs(found - expected).max() < BOUND * max(1, np.abs(expected).max())


def test_tokens_are_those_of_the_package(model_directory: Path, theirs: Any) -> None:
    found, expected = (model.preprocess(TEXTS, prompt="query: ") for model in (_ours(model_directory), theirs))
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(found[name], expected[name])
    assert found["prompt_length"] == expected["prompt_length"] == 3


def test_it_stands_in_the_place_of_their_first_module(model_directory: Path, theirs: Any) -> None:
    model = SentenceTransformer(str(model_directory), device="cpu")
    model[0] = Transformer(model_directory)
    assert np.abs(model.encode(TEXTS) - theirs.encode(TEXTS)).max() < BOUND


def test_max_seq_length_may_be_set(model_directory: Path, theirs: Any) -> None:
    ours = _ours(model_directory)
    ours.max_seq_length = 20
    assert ours.preprocess(TEXTS)["input_ids"].shape == (5, 20)
    shorter = [text[: len("stocks " * 18)] for text in TEXTS]
    assert np.abs(ours.encode(TEXTS) - theirs.encode(shorter)).max() < BOUND
    with pytest.raises(ValueError, match=r"^Transformer: max_seq_length must be .* got 513"):
        ours.max_seq_length = 513


def test_a_saved_model_is_the_same(tiny: Path, tmp_path: Path) -> None:
    model = _ours(tiny, weight_dtype="int8")
    model.max_seq_length = 12
    model.save(str(tmp_path / "saved"))
    expected = model.encode(tiny_bert.TEXTS)
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert isinstance(loaded[0], Transformer)
    assert (loaded.max_seq_length, loaded[0].dtype, loaded[0].weight_dtype) == (12, "float32", "int8")
    assert_same_bits(loaded.encode(tiny_bert.TEXTS), expected)
    loaded.save(str(tmp_path / "saved"))  # over the files that it was read from
    assert Transformer(tmp_path / "saved").max_seq_length == 12


def test_a_model_that_names_the_former_place_is_read(tiny: Path, tmp_path: Path) -> None:
    model = _ours(tiny)
    model.save(str(tmp_path / "saved"))
    path = tmp_path / "saved" / "modules.json"
    modules = json.loads(path.read_text())
    assert modules[0]["type"] == "mha_native.sentence_transformers.Transformer"
    modules[0]["type"] = "mha_native.interop.sentence_transformers.Transformer"
    path.write_text(json.dumps(modules))
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert type(loaded[0]) is Transformer
    expected = model.encode(tiny_bert.TEXTS)
    assert_same_bits(loaded.encode(tiny_bert.TEXTS), expected)
    encoder = SentenceEncoder.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(encoder.encode(tiny_bert.TEXTS), expected, atol=1e-6)


def test_a_saved_model_is_one_for_other_readers(tiny: Path, tmp_path: Path) -> None:
    model = _ours(tiny)
    model.max_seq_length = 12
    model.save(str(tmp_path / "saved"))
    expected = model.encode(tiny_bert.TEXTS)
    encoder = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert encoder.max_seq_length == 12
    np.testing.assert_allclose(encoder.encode(tiny_bert.TEXTS), expected, atol=1e-6)


def test_arguments_come_before_what_is_saved(tiny: Path, tmp_path: Path) -> None:
    _ours(tiny, weight_dtype="int8").save(str(tmp_path / "saved"))
    loaded = SentenceTransformer(
        str(tmp_path / "saved"),
        trust_remote_code=True,
        model_kwargs={"dtype": torch.bfloat16},
        processor_kwargs={"model_max_length": 9},
    )
    assert (loaded[0].dtype, loaded[0].weight_dtype, loaded.max_seq_length) == ("bfloat16", "bfloat16", 9)
    assert loaded.encode(tiny_bert.TEXTS).dtype == np.float32


def test_modules_that_this_library_does_not_know_may_follow(tiny: Path, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import WordWeights

    first = Transformer(tiny)
    weights = WordWeights(tiny_bert.WORDS, dict.fromkeys(tiny_bert.WORDS, 2.0))
    model = SentenceTransformer(modules=[first, weights, Pooling(24, "mean")], device="cpu")
    model.save(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_array_equal(loaded.encode(tiny_bert.TEXTS), model.encode(tiny_bert.TEXTS))


def test_modules_behind_it_learn(tiny: Path) -> None:
    from sentence_transformers.base.modules import Dense

    first = Transformer(tiny)
    model = SentenceTransformer(modules=[first, Pooling(24, "mean"), Dense(24, 3)], device="cpu")
    assert not list(first.parameters())
    model(model.preprocess(tiny_bert.TEXTS))["sentence_embedding"].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_goes_through_pickle(tiny: Path) -> None:
    model = _ours(tiny)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).encode(tiny_bert.TEXTS), model.encode(tiny_bert.TEXTS)
    )


def test_what_is_not_computed_is_refused(tiny: Path) -> None:
    first = Transformer(tiny)
    features = first.preprocess(["dog", "the dog"])
    with pytest.raises(ValueError, match=r"^Transformer.forward: attention_mask must be ones, then zeros"):
        first({"input_ids": features["input_ids"], "attention_mask": features["attention_mask"].flip(1)})
    with pytest.raises(ValueError, match=r"^Transformer.forward: token_type_ids must be zeros"):
        first(features | {"token_type_ids": features["attention_mask"]})
    with pytest.raises(ValueError, match=r"^Transformer.forward: input_ids: tokens must be"):
        first({"input_ids": torch.tensor([[2, 10**6, 3]])})
    with pytest.raises(TypeError, match=r"^Transformer.preprocess: inputs must be str; got tuple at 0"):
        first.preprocess([("dog", "cat")])
    with pytest.raises(ValueError, match="has no arguments max_length"):
        first.preprocess(["dog"], max_length=5)
    with pytest.raises(FileNotFoundError, match=r"^Transformer: "):
        Transformer(tiny / "absent")


def test_first_modules_of_another_kind_are_refused(tiny: Path) -> None:
    (tiny / "modules.json").write_text(json.dumps(tiny_bert.modules("BoW", "Pooling")), encoding="utf-8")
    with pytest.raises(ValueError, match="must list a Transformer first, as sentence-transformers has it; got BoW"):
        Transformer(tiny)
