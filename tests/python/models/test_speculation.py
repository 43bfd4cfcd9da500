"""Speculation: the tokens, and the logits that they are chosen by, are those without drafts, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model

from mha_native.models import CausalLM
from mha_native.models.generation.engine import Caches, GenerationOptions, generate_steps
from mha_native.models.generation.sampling import SamplingOptions, TokenChoice
from mha_native.models.generation.speculation import PromptLookup, drafter_of, speculative_steps
from mha_native.serving import Batcher

# The first ones repeat themselves, so that a lookup finds drafts.
PROMPTS = ["the the the the the", "a, the apple a, the", "é, the 🙂 of the", "b"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return CausalLM.from_pretrained(tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def drafts(model: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A lookup; models whose drafts are always, nearly always, and hardly ever right; one with few positions."""
    folder = tmp_path_factory.mktemp("drafts")
    tiny_language_model.write(folder / "same")
    tiny_language_model.write(folder / "one layer", n_layer=1)
    return {
        "prompt-lookup": "prompt-lookup",
        "same": model,
        "int8": CausalLM.from_pretrained(folder / "same", weight_dtype="int8"),
        "one layer": CausalLM.from_pretrained(folder / "one layer"),
        "short": CausalLM.from_pretrained(folder / "same", max_length=20),
    }


SAMPLING = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.5, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 1},
]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("draft", ["prompt-lookup", "same", "int8", "one layer", "short"])
def test_tokens_are_those_without_drafts(
    draft: str, sampling: dict[str, Any], model: CausalLM, drafts: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, **sampling}
    expected = [tokens.tolist() for tokens in model.generate_tokens(PROMPTS, **options)]
    for count in (1, 3, 8):
        speculative: dict[str, Any] = {"draft": drafts[draft], "num_draft_tokens": count, **options}
        assert [tokens.tolist() for tokens in model.generate_tokens(PROMPTS, **speculative)] == expected
        statistics = model.statistics
        assert statistics.new_tokens == sum(map(len, expected))
        assert 0 <= statistics.accepted_tokens <= statistics.draft_tokens
        if draft == "same":
            assert statistics.accepted_tokens == statistics.draft_tokens > 0
            assert statistics.acceptance_rate == 1
    assert model.generate_tokens(PROMPTS[0], **speculative).tolist() == expected[0]
    usual, found = (model.complete(PROMPTS, logprobs=2, **each) for each in (options, speculative))
    for one, other in zip(usual, found, strict=True):
        assert (one.text, one.finish_reason, one.logprobs) == (other.text, other.finish_reason, other.logprobs)


def steps(model: CausalLM, drafter: Any, count: int, sampling: dict[str, Any], **cache: Any) -> list[list[Any]]:
    """The tokens of each sequence, each with the bytes of the logits that it was chosen by."""
    options = GenerationOptions.checked("test", sampling, model._model.dtype).sampling
    prompts = [model.tokenize(prompt).tolist() for prompt in PROMPTS]
    choices = [
        TokenChoice("test", options, list(prompt), model.vocab_size, 24, index=i) for i, prompt in enumerate(prompts)
    ]
    caches = Caches(model._model.cached(1), len(prompts), 1, 48, **cache)
    rest = (drafter, count) if drafter is not None else ()
    found: list[list[Any]] = [[] for _ in prompts]
    for step in (speculative_steps if rest else generate_steps)("test", caches, choices, *rest):
        for sequence, token, logits in zip(step.sequences, step.tokens, step.logits, strict=True):
            found[sequence].append((int(token), logits.tobytes()))
    return found


@pytest.mark.parametrize("formats", [{}, {"dtype": "float64"}, {"dtype": "bfloat16"}, {"weight_dtype": "int8"}])
@pytest.mark.parametrize("cache_dtype", [None, "int8"])
def test_logits_have_the_bits_that_they_have_without_drafts(
    formats: dict[str, Any], cache_dtype: str | None, tmp_path: Path
) -> None:
    """Rejected tokens leave no trace in the caches, whatever their format."""
    if "dtype" in formats:
        pytest.importorskip("ml_dtypes")
        if cache_dtype is not None:
            pytest.skip("caches in few bits are those of models in float32")
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path / "tiny"), **formats)
    worse = CausalLM.from_pretrained(tiny_language_model.write(tmp_path / "one layer", n_layer=1))
    for sampling in SAMPLING[::2]:
        expected = steps(model, None, 0, sampling, dtype=cache_dtype)
        for draft in (PromptLookup(), drafter_of(worse.generator, len(PROMPTS), 1, 48, None)):
            assert steps(model, draft, 4, sampling, dtype=cache_dtype) == expected


def test_texts_end_where_they_end_without_drafts(model: CausalLM, drafts: dict[str, Any]) -> None:
    """At a stop text within a draft, at an end token, and at the last position of the model."""
    text = model.generate(PROMPTS, max_new_tokens=30)
    stop = [piece[len(piece) // 2 :][:3] for piece in text]
    for draft in drafts.values():
        found = model.generate(PROMPTS, max_new_tokens=30, stop=stop, draft=draft, num_draft_tokens=7)
        assert found == model.generate(PROMPTS, max_new_tokens=30, stop=stop)
        pieces = list(model.generate(PROMPTS[0], max_new_tokens=30, stop=stop, draft=draft, stream=True))
        assert "".join(pieces) == found[0]
        long = model.generate_tokens(PROMPTS, max_new_tokens=1000, draft=draft, num_draft_tokens=16)
        assert [x.tolist() for x in long] == [x.tolist() for x in model.generate_tokens(PROMPTS, max_new_tokens=1000)]
    free = model.generate_tokens(PROMPTS[0], max_new_tokens=30).tolist()
    ending = CausalLM(model._model, model._tokenizer, model._template, [free[9]])
    expected = ending.generate_tokens(PROMPTS, max_new_tokens=30)
    for draft in (*drafts.values(), ending):
        found = ending.generate_tokens(PROMPTS, max_new_tokens=30, draft=draft)
        assert [tokens.tolist() for tokens in found] == [tokens.tolist() for tokens in expected]


def test_a_draft_without_numbers_is_no_error(model: CausalLM, drafts: dict[str, Any], monkeypatch: Any) -> None:
    """Its logits choose no token, and the model goes on without it."""
    draft = drafts["one layer"]
    monkeypatch.setattr(draft._model, "head", lambda rows, num_threads: np.full((len(rows), model.vocab_size), np.nan))
    found = model.generate_tokens(PROMPTS, max_new_tokens=12, draft=draft)
    assert model.statistics.draft_tokens == 0
    assert np.isnan(model.statistics.acceptance_rate)
    assert [x.tolist() for x in found] == [x.tolist() for x in model.generate_tokens(PROMPTS, max_new_tokens=12)]


def longest_match(tokens: list[int], most: int) -> list[int]:
    """The draft of a lookup, by comparing all parts of the tokens."""
    for length in range(min(16, len(tokens) - 1), 0, -1):
        for first in range(len(tokens) - length - 1, -1, -1):
            if tokens[first : first + length] == tokens[-length:]:
                draft = list(tokens)
                for place in range(first + length, first + length + min(most, length)):
                    draft.append(draft[place])
                return draft[len(tokens) :]
    return []


def test_lookup_continues_the_longest_last_match() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        tokens = rng.integers(0, rng.integers(1, 6), rng.integers(1, 40)).tolist()
        choice = TokenChoice("test", SamplingOptions(), tokens, 6, 100)
        most = int(rng.integers(0, 9))
        (found,) = PromptLookup().drafts([choice], np.array([0]), [most])
        assert found == longest_match(tokens, most), tokens
        hits += bool(found)
    assert hits > 500


def test_what_cannot_be_a_draft_is_refused(model: CausalLM, tmp_path: Path) -> None:
    function = "CausalLM.generate: "
    for draft in ("lookup", 3, object(), model._model):
        with pytest.raises(TypeError, match=f'{function}draft must be a CausalLM, "prompt-lookup" or None; got '):
            model.generate("a", draft=draft)
    for count in (0, 1.5, "3"):
        with pytest.raises((TypeError, ValueError), match=f"{function}num_draft_tokens must be"):
            model.generate("a", draft="prompt-lookup", num_draft_tokens=count)
    with pytest.raises(ValueError, match=f"{function}num_draft_tokens needs a draft"):
        model.generate("a", num_draft_tokens=3)
    others = []
    for word in ("wombat", "numbat"):
        tokenizer = tiny_language_model.tokenizer()
        tokenizer.add_tokens([word])
        files = {"tokenizer.json": tokenizer.to_str()}
        size = tokenizer.get_vocab_size()
        others.append(CausalLM.from_pretrained(tiny_language_model.write(tmp_path / word, files, vocab_size=size)))
    rule = f"{function}draft must have the tokens of the model, "
    with pytest.raises(ValueError, match=f"{rule}{size - 1}; got {size} tokens$"):
        model.generate("a", draft=others[0])
    with pytest.raises(ValueError, match=f"{rule}{size}; got {size} tokens, the same number but others$"):
        others[0].generate("a", draft=others[1])
    with (
        Batcher(model) as batcher,
        pytest.raises(TypeError, match=r"Batcher.submit: draft is an option of CausalLM\.generate"),
    ):
        batcher.submit("a", draft="prompt-lookup")
