"""Completions: log-probabilities, the reason of the end, and the options that decide when a text ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
from tiny_language_model import POSITIONS, VOCABULARY

from mha_native.models import CausalLM, TokenLogprobs
from mha_native.models.generation import sampling

PROMPTS = ["the apple", "a", "é, the 🙂 of the"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return CausalLM.from_pretrained(tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny"))


def logprobs_of(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """By the definition, in float64."""
    x = logits.astype(np.float64)
    logs = x - x.max() - np.log(np.exp(x - x.max()).sum())
    order = np.argsort(-logits, kind="stable")[:count]
    return TokenLogprobs(token, float(logs[token]), tuple((int(i), float(logs[i])) for i in order))


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.5, "seed": 2, "repetition_penalty": 1.4, "top_k": 9}], ids=str
)
def test_log_probabilities_are_those_of_the_logits_before_all_options(
    model: CausalLM, options: dict[str, Any], monkeypatch: Any
) -> None:
    """Of new tokens and of the tokens of prompts, whose logits are computed a few rows at a time."""
    monkeypatch.setattr(sampling, "_PROMPT_ROWS", 3)
    options |= {"max_new_tokens": 7}
    found = model.complete(PROMPTS, logprobs=3, prompt_logprobs=2, **options)
    assert [each.text for each in found] == model.generate(PROMPTS, **options)
    without = model.complete(PROMPTS, logprobs=0, **options)
    of_all = zip(PROMPTS, found, without, model.generate_tokens(PROMPTS, **options), strict=True)
    for prompt, each, fewer, new in of_all:
        tokens = model.tokenize(prompt).tolist()
        assert each.tokens.tolist() == new.tolist()
        whole = [*tokens, *each.tokens.tolist()]
        logits = model.logits(whole)
        expected = [logprobs_of(logits[i], whole[i + 1], 2) for i in range(len(tokens) - 1)]
        assert each.prompt_logprobs == (None, *expected)
        start = len(tokens) - 1
        assert each.logprobs == tuple(logprobs_of(logits[start + i], whole[start + i + 1], 3) for i in range(7))
        likelihoods = [*each.prompt_logprobs[1:], *each.logprobs]
        assert [one.logprob for one in likelihoods] == model.score(whole).log_likelihoods.tolist()
        assert fewer.logprobs == tuple(one._replace(top=()) for one in each.logprobs)
    plain = model.complete(PROMPTS[0], **options)
    assert (plain.logprobs, plain.prompt_logprobs) == (None, None)
    assert len(model.complete("a", logprobs=VOCABULARY + 9, max_new_tokens=1).logprobs[0].top) == VOCABULARY


def test_a_text_says_why_it_ended(model: CausalLM, tmp_path: Path) -> None:
    free = model.complete(PROMPTS[0], max_new_tokens=12)
    tokens = free.tokens.tolist()
    place = next(i for i in range(3, 12) if tokens.index(tokens[i]) == i)
    end = tokens[place]
    before = model.decode([*model.tokenize(PROMPTS[0]), *tokens[:place]])[len(PROMPTS[0]) :]
    assert (free.finish_reason, free.stop_text) == ("length", None)

    def ends(model: CausalLM, **options: Any) -> tuple[Any, ...]:
        found = model.complete(PROMPTS[0], **{"max_new_tokens": 12} | options)
        assert model.generate(PROMPTS[0], **{"max_new_tokens": 12} | options) == found.text
        return found.text, len(found.tokens), found.finish_reason, found.stop_text

    assert ends(model, stop_token_ids=[end, VOCABULARY - 1]) == (before, place + 1, "stop", None)
    assert ends(model, stop_token_ids=np.array([end]), max_new_tokens=place + 1) == (before, place + 1, "stop", None)
    stop = free.text[len(before) - 1 :][:2]
    text, count, reason, found = ends(model, stop=["never there", stop])
    assert (text, reason, found) == (free.text[: free.text.index(stop)], "stop", stop)
    assert count < 12
    assert model.complete([5] * POSITIONS).finish_reason == "length"

    ending = CausalLM.from_pretrained(tiny_language_model.write(tmp_path, eos_token_id=end))
    assert ends(ending) == (before, place + 1, "stop", None)
    assert ends(ending, ignore_eos=True)[1:] == (12, "length", None)
    assert ending.generate_tokens(PROMPTS[0], max_new_tokens=12, ignore_eos=True).tolist() == tokens
    late = ending.generate_tokens(PROMPTS[0], max_new_tokens=12, min_new_tokens=9, stop_token_ids=[tokens[0]])
    assert len(late) >= 9
    assert not {end, tokens[0]} & set(late[:9].tolist())


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"logprobs": -1}, ValueError, "logprobs must be at least 0; got -1"),
        ({"logprobs": True}, TypeError, "logprobs"),
        ({"prompt_logprobs": 1.5}, TypeError, "prompt_logprobs"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos"),
        ({"stop_token_ids": 5}, TypeError, "stop_token_ids must be a list of tokens; got 5"),
        ({"stop_token_ids": ["a"]}, TypeError, "a token of stop_token_ids"),
        ({"stop_token_ids": [VOCABULARY]}, ValueError, f"a token of stop_token_ids must be from 0 to {VOCABULARY - 1}"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, ValueError, "min_new_tokens must be from 0 to 8; got 9"),
        ({"min_new_tokens": 1, "stop_token_ids": range(VOCABULARY)}, TypeError, "stop_token_ids must be a list"),
        (
            {"min_new_tokens": 1, "stop_token_ids": [*range(VOCABULARY)]},
            ValueError,
            "a token that does not end the text",
        ),
        ({"logit_bias": {VOCABULARY: 1}}, ValueError, "a token of logit_bias must be from 0 to"),
        ({"response_format": {"type": "json_object"}}, TypeError, "unexpected keyword argument 'response_format'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(model: CausalLM, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=rf"^CausalLM.complete: .*{words}"):
        model.complete("a", **options)


@pytest.mark.parametrize("name", ["generate", "generate_tokens"])
def test_functions_that_return_texts_or_tokens_have_no_log_probabilities(model: CausalLM, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^CausalLM.{name}: got an unexpected keyword argument 'logprobs'"):
        getattr(model, name)("a", logprobs=1)
