"""Language models: what is generated is what the logits of the whole text say, token by token."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
from tiny_language_model import POSITIONS, VOCABULARY

from mha_native.models import CausalLM
from mha_native.models.generation import engine

PROMPTS = ["the apple", "a", "é, the 🙂 of the"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def model(directory: Path) -> CausalLM:
    return CausalLM.from_pretrained(directory)


def greedy(model: CausalLM, tokens: list[int], count: int) -> list[int]:
    """The largest logits, each from the whole text before it."""
    new: list[int] = []
    for _ in range(count):
        new.append(int(model.logits(np.array(tokens + new))[-1].argmax()))
    return new


@pytest.mark.parametrize("first_room", [0, 3, 256])
def test_tokens_are_those_of_the_whole_text(model: CausalLM, first_room: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "FIRST_ROOM", first_room)
    expected = [greedy(model, model.tokenize(prompt).tolist(), 12) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 8, "tokens hardly differ"
    assert [tokens.tolist() for tokens in model.generate_tokens(PROMPTS, max_new_tokens=12)] == expected
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        alone = model.generate_tokens(prompt, max_new_tokens=12)
        assert alone.dtype == np.int64
        assert alone.tolist() == tokens
        assert model.generate_tokens(model.tokenize(prompt), max_new_tokens=12).tolist() == tokens
        assert model.generate_tokens(model.tokenize(prompt).tolist(), max_new_tokens=12).tolist() == tokens


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "float16", "int8", np.int8])
def test_tokens_over_caches_in_few_bits(model: CausalLM, cache_dtype: Any, monkeypatch: Any) -> None:
    """Room that grows keeps integers and scales: tokens do not depend on how much there is at first."""
    if cache_dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    expected = model.generate_tokens(PROMPTS, max_new_tokens=12, cache_dtype=cache_dtype)
    if cache_dtype == "float32":
        usual = model.generate_tokens(PROMPTS, max_new_tokens=12)
        assert [tokens.tolist() for tokens in expected] == [tokens.tolist() for tokens in usual]
    monkeypatch.setattr(engine, "FIRST_ROOM", 1)
    found = model.generate_tokens(PROMPTS, max_new_tokens=12, cache_dtype=cache_dtype)
    assert [tokens.tolist() for tokens in found] == [tokens.tolist() for tokens in expected]
    assert {
        cache.dtype.name for cache in engine.Caches(model._model.cached(None), 1, 1, 1, dtype=cache_dtype).caches
    } == {np.dtype(cache_dtype).name}


@pytest.mark.parametrize("cache_dtype", ["float64", "int16", 3, "no dtype"])
def test_caches_of_another_dtype_are_refused(model: CausalLM, cache_dtype: Any) -> None:
    rule = "CausalLM.generate: cache_dtype of a model in float32 must be float32 or bfloat16 or float16 or int8; got"
    with pytest.raises(TypeError, match=rule):
        model.generate(PROMPTS, cache_dtype=cache_dtype)


def test_text_is_that_of_the_tokens(model: CausalLM) -> None:
    texts = model.generate(PROMPTS, max_new_tokens=12)
    for prompt, text, tokens in zip(PROMPTS, texts, model.generate_tokens(PROMPTS, max_new_tokens=12), strict=True):
        assert prompt + text == model.decode(np.append(model.tokenize(prompt), tokens))
        assert model.generate(prompt, max_new_tokens=12) == text
        pieces = list(model.generate(prompt, max_new_tokens=12, stream=True))
        assert "".join(pieces) == text
        assert all(pieces)
        assert len(pieces) > 3
    rows = list(model.generate(PROMPTS, max_new_tokens=12, stream=True))
    assert ["".join(column) for column in zip(*rows, strict=True)] == texts


def test_draws_depend_on_the_seed(model: CausalLM) -> None:
    sampling: dict[str, Any] = {"temperature": 1.5, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "max_new_tokens": 10}
    first, same, other = (model.generate_tokens(PROMPTS[0], seed=seed, **sampling).tolist() for seed in (1, 1, 2))
    assert first == same != other
    assert model.generate_tokens(PROMPTS, seed=1, **sampling)[0].tolist() == first
    penalized = model.generate_tokens(PROMPTS[0], repetition_penalty=1e6, max_new_tokens=30).tolist()
    assert len({*penalized, *model.tokenize(PROMPTS[0]).tolist()}) == 30 + len(set(model.tokenize(PROMPTS[0]).tolist()))


@pytest.mark.parametrize("place", ["generation_config.json", "config.json", "several"])
def test_a_token_that_ends_a_text_is_its_last_one(place: str, model: CausalLM, tmp_path: Path) -> None:
    free = [tokens.tolist() for tokens in model.generate_tokens(PROMPTS, max_new_tokens=12)]
    end = free[0][4]
    if place == "config.json":
        changed = tiny_language_model.write(tmp_path, eos_token_id=end)
    else:
        ends = end if place == "generation_config.json" else [tiny_language_model.END, end]
        files = {"generation_config.json": {"eos_token_id": ends}}
        changed = tiny_language_model.write(tmp_path, files, eos_token_id=free[0][0])
    ending = CausalLM.from_pretrained(changed)
    expected = [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in free]
    assert [tokens.tolist() for tokens in ending.generate_tokens(PROMPTS, max_new_tokens=12)] == expected
    without = [model.decode(tokens[:-1] if tokens[-1] == end else tokens) for tokens in expected]
    assert ending.generate(PROMPTS, max_new_tokens=12) == without
    assert ending.statistics.new_tokens == sum(map(len, expected))


def test_stop_strings_end_their_text(model: CausalLM) -> None:
    free = model.generate(PROMPTS, max_new_tokens=12)
    stop = free[1][len(free[1]) // 2 :][:2]
    expected = [text[: text.find(stop)] if stop in text else text for text in free]
    assert expected[1] != free[1]
    assert model.generate(PROMPTS, max_new_tokens=12, stop=stop) == expected
    assert model.statistics.new_tokens < 36
    for text, prompt in zip(expected, PROMPTS, strict=True):
        pieces = model.generate(prompt, max_new_tokens=12, stop=["not there", stop], stream=True)
        assert "".join(pieces) == text


def test_a_text_ends_where_the_positions_do(model: CausalLM, directory: Path) -> None:
    prompts = [[5] * (POSITIONS - 3), [5] * POSITIONS, [5, 6]]
    found = model.generate_tokens(prompts)
    assert [len(tokens) for tokens in found] == [4, 1, POSITIONS - 1]
    for prompt, tokens in zip(prompts, found, strict=True):
        assert model.generate_tokens(prompt).tolist() == tokens.tolist()
        assert tokens.tolist() == greedy(model, prompt, len(tokens))
    with pytest.raises(ValueError, match=f"CausalLM.generate: prompts must have no more tokens .* {POSITIONS}; got 49"):
        model.generate([5] * (POSITIONS + 1))
    shorter = CausalLM.from_pretrained(directory, max_length=9)
    assert shorter.max_length == 9
    assert shorter.generate_tokens([5, 6]).tolist() == found[2][:8].tolist()


def test_statistics(model: CausalLM) -> None:
    model.generate(PROMPTS, max_new_tokens=7)
    statistics = model.statistics
    assert statistics.num_prompts == 3
    assert statistics.prompt_tokens == sum(len(model.tokenize(prompt)) for prompt in PROMPTS)
    assert statistics.new_tokens == 21
    assert statistics.prompt_seconds > 0
    assert statistics.tokens_per_second == 18 / statistics.new_seconds
    assert statistics.prompt_tokens_per_second == statistics.prompt_tokens / statistics.prompt_seconds
    pieces = model.generate("a", max_new_tokens=20, stream=True)
    next(pieces)
    assert 1 <= model.statistics.new_tokens < 20


def test_logits_have_the_bits_that_they_have_alone(model: CausalLM) -> None:
    together = model.logits(PROMPTS)
    for prompt, logits in zip(PROMPTS, together, strict=True):
        assert logits.shape == (len(model.tokenize(prompt)), VOCABULARY)
        assert_same_bits(model.logits(prompt), logits)


def test_scores_are_those_of_the_logits(model: CausalLM) -> None:
    scores = model.score([*PROMPTS, "a"])
    for text, score in zip([*PROMPTS, "a"], scores, strict=True):
        logits = model.logits(text).astype(np.float64)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        tokens = model.tokenize(text)
        assert score.tokens.tolist() == tokens.tolist()
        expected = np.log(p[np.arange(len(tokens) - 1), tokens[1:]])
        np.testing.assert_allclose(score.log_likelihoods, expected, rtol=1e-12)
        assert model.score(text).log_likelihoods.tobytes() == score.log_likelihoods.tobytes()
    assert scores[0].total == scores[0].log_likelihoods.sum()
    assert scores[0].perplexity == pytest.approx(np.exp(-scores[0].total / len(scores[0].log_likelihoods)))
    assert np.isnan(scores[3].perplexity)
    assert model.score([]) == model.logits([]) == model.generate([]) == model.generate_tokens([]) == []


def test_a_large_vocabulary_is_scored_in_parts(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.score(PROMPTS[0]).log_likelihoods
    monkeypatch.setattr("mha_native.models.architecture.model._MOST_LOGITS", 1)
    np.testing.assert_array_equal(model.score(PROMPTS[0]).log_likelihoods, expected)


@pytest.mark.parametrize(
    "formats",
    [{"dtype": "float64"}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"weight_dtype": "bfloat16"},
     {"weight_dtype": "int8"}],
    ids=str,
)  # fmt: skip
def test_formats(formats: dict[str, Any], directory: Path, model: CausalLM) -> None:
    other = CausalLM.from_pretrained(directory, **formats)
    assert formats.items() <= {"dtype": str(other.dtype), "weight_dtype": other.weight_dtype}.items()
    logits, expected = other.logits(PROMPTS[0]), model.logits(PROMPTS[0])
    assert logits.dtype == (np.float64 if formats.get("dtype") == "float64" else np.float32)
    assert np.abs(logits - expected).max() < (1e-4 if logits.dtype == np.float64 else 0.5)
    assert logits.tobytes() != expected.tobytes()
    assert other.generate_tokens(PROMPTS[2], max_new_tokens=6).tolist() == greedy(
        other, other.tokenize(PROMPTS[2]).tolist(), 6
    )


def test_a_copy_gives_the_same(directory: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        model = CausalLM.from_pretrained(directory, dtype=dtype)
        copied = pickle.loads(pickle.dumps(model))
        assert_same_bits(copied.logits("the a"), model.logits("the a"))
        messages = [{"role": "user", "content": "Hello"}]
        assert copied.apply_chat_template(messages) == model.apply_chat_template(messages) if _has_jinja() else True
        assert repr(copied) == repr(model)


def _has_jinja() -> bool:
    try:
        import jinja2  # noqa: F401
    except ImportError:
        return False
    return True


def test_what_it_says_of_itself(model: CausalLM) -> None:
    assert (model.embed_dim, model.num_layers, model.vocab_size, model.max_length) == (32, 2, VOCABULARY, 48)
    assert repr(model) == (
        f"CausalLM(embed_dim=32, num_layers=2, num_heads=4, vocab_size={VOCABULARY}, max_length=48, dtype='float32', "
        "weight_dtype='float32')"
    )


def test_special_tokens_of_texts(model: CausalLM) -> None:
    assert model.tokenize("a<|end|>").tolist()[-1] == tiny_language_model.END
    assert model.decode(model.tokenize("a<|end|>b")) == "ab"


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"prompts": 5}, TypeError, "CausalLM.generate: prompts must be"),
        ({"prompts": {"a": 1}}, TypeError, "prompts"),
        ({"prompts": ""}, ValueError, "CausalLM.generate: prompts must have a token; got none at 0"),
        ({"prompts": ["a", ""]}, ValueError, "got none at 1"),
        ({"prompts": ["a", 5]}, TypeError, "prompts"),
        ({"prompts": ["\ud800"]}, ValueError, "surrogate"),
        ({"prompts": [-1]}, ValueError, "CausalLM.generate: prompts: tokens must be from 0 to"),
        ({"prompts": [[1], [10**6]]}, ValueError, "at 1"),
        ({"prompts": np.array([1.5])}, TypeError, "integers"),
        ({"max_new_tokens": 0}, ValueError, "CausalLM.generate: max_new_tokens must be at least 1; got 0"),
        ({"temperature": -1}, ValueError, "CausalLM.generate: temperature"),
        ({"top_k": 1.5}, TypeError, "CausalLM.generate: top_k"),
        ({"seed": -1, "temperature": 1}, ValueError, "CausalLM.generate: seed"),
        ({"stop": 5}, TypeError, "CausalLM.generate: stop must be a str, or a list of them; got 5"),
        ({"stop": [""]}, ValueError, "CausalLM.generate: stop"),
        ({"stream": 2}, TypeError, "CausalLM.generate: stream"),
        ({"num_threads": 0}, ValueError, "CausalLM.generate: num_threads"),
        ({"max_tokens": 5}, TypeError, "CausalLM.generate: got an unexpected keyword argument 'max_tokens'"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_before_anything_is_computed(
    given: dict[str, Any], kind: type[Exception], words: str, model: CausalLM
) -> None:
    arguments: dict[str, Any] = {"prompts": "a", "max_new_tokens": 1, "stream": True} | given
    with pytest.raises(kind, match=words):
        model.generate(**arguments)


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        ({"generation_config.json": {"eos_token_id": "</s>"}}, {}, "eos_token_id must be"),
        ({}, {"eos_token_id": VOCABULARY}, "eos_token_id must be of tokens from 0 to"),
        ({}, {"eos_token_id": [1, -1]}, "eos_token_id"),
        ({}, {"vocab_size": VOCABULARY - 1}, "more than vocab_size"),
        ({"tokenizer.json": None}, {}, "tokenizer.json does not exist"),
        ({"generation_config.json": "{"}, {}, "not valid JSON"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_are_refused(
    files: dict[str, Any], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        CausalLM.from_pretrained(tiny_language_model.write(tmp_path / "model", files, **changes))
    assert str(caught.value).startswith("CausalLM.from_pretrained: ")
    assert len(str(caught.value).splitlines()) == 1


def test_tokens_are_those_of_transformers(directory: Path, model: CausalLM) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    for prompt in PROMPTS:
        ids = torch.tensor(model.tokenize(prompt)[None])
        with torch.no_grad():
            np.testing.assert_allclose(model.logits(prompt), theirs(ids).logits[0].numpy(), atol=2e-4)
            for penalty in (1.0, 1.5):
                given = {"max_new_tokens": 20, "repetition_penalty": penalty}
                expected = theirs.generate(ids, do_sample=False, pad_token_id=0, **given)[0, ids.shape[1] :]
                assert model.generate_tokens(prompt, **given).tolist() == expected.tolist()
