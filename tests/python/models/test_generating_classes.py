"""Arguments, defaults, conversions and old names of `CausalLM`, `Seq2SeqLM`, `Batcher` and `generate`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_generators
import tiny_language_model
from tolerance import assert_same_bits

import mha_native
from mha_native.models import CausalLM, Seq2SeqLM
from mha_native.models.generation.sampling import SamplingKeywords, SamplingOptions
from mha_native.serving import Batcher

PROMPTS = ["the apple", "a", "the apple"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def causal(folder: Path) -> CausalLM:
    return CausalLM.from_pretrained(tiny_language_model.write(folder / "causal", n_positions=400))


@pytest.fixture(scope="module")
def seq2seq(folder: Path) -> Seq2SeqLM:
    return Seq2SeqLM.from_pretrained(tiny_generators.write(folder / "bart", tiny_generators.config("bart")))


def test_every_option_of_sampling_is_explained() -> None:
    assert SamplingKeywords.__optional_keys__ == set(SamplingOptions._fields)
    for function in (CausalLM.generate, mha_native.generate):
        lines = (inspect.getdoc(function) or "").splitlines()
        for name in SamplingOptions._fields:
            assert sum(line.startswith(f"{name} : ") for line in lines) == 1, name


def test_256_tokens_unless_said_otherwise(causal: CausalLM, seq2seq: Seq2SeqLM) -> None:
    (tokens,) = causal.generate_tokens([[5, 6]])
    assert len(tokens) == 256
    batcher = Batcher(causal)
    request = batcher.submit([5, 6])
    while batcher.run_step():
        pass
    assert list(request.tokens()) == tokens.tolist()
    model = mha_native.CausalDecoder(1, 8, 2, 8, seed=0)
    table = np.random.default_rng(0).standard_normal((9, 8), dtype=np.float32)
    assert sum(1 for _ in mha_native.generate(model, [[1, 2]], table)) == 256
    longest = {"min_new_tokens": tiny_generators.POSITIONS}  # as long as the positions allow
    assert len(seq2seq.generate_tokens([2, 9, 3], **longest).tokens) == tiny_generators.POSITIONS  # type: ignore[arg-type]


def test_texts_and_tokens_are_prompts_of_both(causal: CausalLM, seq2seq: Seq2SeqLM) -> None:
    for model, text in ((causal, "the apple"), (seq2seq, "the dog")):
        tokens = model.tokenize(text)
        assert tokens.dtype == np.int64
        assert [each.tolist() for each in model.tokenize([text, "a"])] == [
            tokens.tolist(),
            model.tokenize("a").tolist(),
        ]
        assert model.decode(model.tokenize(text, add_special_tokens=False)).strip() == text

        def found(prompts: Any, model: Any = model) -> Any:
            return model.generate_tokens(prompts, max_new_tokens=5)

        expected = [getattr(each, "tokens", each).tolist() for each in found([text])]
        for one in (text, tokens, tokens.tolist()):
            assert getattr(found(one), "tokens", found(one)).tolist() == expected[0]
            (of_list,) = found([one])
            assert getattr(of_list, "tokens", of_list).tolist() == expected[0]
        assert found([]) == []
    assert len(causal.tokenize("a", add_special_tokens=False)) == len(causal.tokenize("a"))
    assert len(seq2seq.tokenize("the", add_special_tokens=False)) < len(seq2seq.tokenize("the"))
    with pytest.raises(TypeError, match=r"^CausalLM\.tokenize: texts must be str; got int at 1"):
        causal.tokenize(["a", 5])


@pytest.mark.parametrize("which", [CausalLM, Seq2SeqLM])
@pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])
def test_a_model_is_quantized_as_it_is_opened(which: Any, weight_dtype: Any, folder: Path, request: Any) -> None:
    name = {CausalLM: "causal", Seq2SeqLM: "seq2seq"}[which]
    model = request.getfixturevalue(name)
    opened = which.from_pretrained(folder / {"seq2seq": "bart"}.get(name, name), weight_dtype=weight_dtype)
    quantized = model.quantize(weight_dtype)
    assert (quantized.weight_dtype, model.weight_dtype) == (weight_dtype, "float32")
    assert repr(quantized) == repr(opened)
    arguments = ([2, 9, 3],) if which is CausalLM else ([2, 9, 3], [2, 5])
    assert_same_bits(quantized.logits(*arguments), opened.logits(*arguments))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_in_another_dtype(causal: CausalLM, seq2seq: Seq2SeqLM, dtype: str) -> None:
    bound = {"float64": 1e-4, "bfloat16": 0.3}[dtype]
    for model, arguments in ((causal, ([2, 9, 3],)), (seq2seq, ([2, 9, 3], [2, 5]))):
        other = model.astype(dtype)
        assert (other.dtype.name, model.dtype.name) == (dtype, "float32")
        logits, expected = (each.logits(*arguments) for each in (other, model))  # type: ignore[arg-type]
        assert 0 < np.abs(logits - expected).max() <= bound
        assert len(other.generate_tokens([2, 9, 3], max_new_tokens=3))


def test_sizes(causal: CausalLM, seq2seq: Seq2SeqLM) -> None:
    assert (causal.num_layers, causal.num_heads, causal.max_length) == (2, 4, 400)
    assert (seq2seq.num_layers, seq2seq.num_decoder_layers, seq2seq.num_heads) == (2, 3, 3)
    assert seq2seq.max_length == tiny_generators.POSITIONS


def test_a_request_draws_as_a_prompt_of_a_list(causal: CausalLM) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_new_tokens": 12}
    expected = causal.generate(PROMPTS, **options)
    batcher = Batcher(causal)
    requests = [batcher.submit(prompt, index=i, **options) for i, prompt in enumerate(PROMPTS)]
    while batcher.run_step():
        pass
    assert [request.result() for request in requests] == expected
    assert expected[0] != expected[2], "prompts of a list have random numbers of their own"
    with pytest.raises(ValueError, match=r"^Batcher\.submit: index must be at least 0; got -1"):
        batcher.submit("a", index=-1)


def test_the_dtype_of_caches_is_one_for_all_requests(causal: CausalLM) -> None:
    with pytest.raises(TypeError, match=r"^Batcher\.submit: cache_dtype is an argument of Batcher, for all of its"):
        Batcher(causal).submit("a", cache_dtype="int8")


def test_a_conversation_beyond_the_positions_is_refused(causal: CausalLM, folder: Path) -> None:
    pytest.importorskip("jinja2")
    model = CausalLM.from_pretrained(folder / "causal", max_length=20)
    with pytest.raises(ValueError, match=r"^CausalLM\.chat: messages must have no more tokens than the model has pos"):
        model.chat([{"role": "user", "content": "the apple " * 9}])


def test_names_that_have_changed_warn(causal: CausalLM, seq2seq: Seq2SeqLM, folder: Path) -> None:
    with pytest.deprecated_call(match=r"^CausalLM\.encode is deprecated; use tokenize"):
        assert causal.encode("the apple").tolist() == causal.tokenize("the apple").tolist()
    with (
        pytest.deprecated_call(match="encode"),
        pytest.deprecated_call(match="tokenize: text= is deprecated; use texts="),
    ):
        assert causal.encode(text="a", add_special_tokens=False).tolist() == causal.tokenize("a").tolist()
    with pytest.deprecated_call(match=r"^CausalLM\.from_pretrained: directory= is deprecated; use model="):
        CausalLM.from_pretrained(directory=folder / "causal")
    with pytest.deprecated_call(match=r"^Seq2SeqLM\.from_pretrained: directory= is deprecated; use model="):
        Seq2SeqLM.from_pretrained(directory=folder / "bart")
    with pytest.deprecated_call(match=r"^Seq2SeqLM\.generate_tokens: sequences= is deprecated; use texts="):
        (found,) = seq2seq.generate_tokens(sequences=[[2, 9, 3]], max_new_tokens=3)
    assert found.tokens.tolist() == seq2seq.generate_tokens([2, 9, 3], max_new_tokens=3).tokens.tolist()
