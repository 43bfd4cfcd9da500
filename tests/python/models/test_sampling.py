"""The rules by which a token is chosen are those of transformers, in its order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mha_native.models.generation import sampling
from mha_native.models.generation.sampling import SamplingOptions, TokenChoice, choose

VOCABULARIES = (5, 60, sampling._FEW + 700)  # all are put in order, or a few of them at first

RULES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 0.7, "top_k": 10**6},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.97},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 4.0, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0},
    {"temperature": 1.5, "top_k": 30, "top_p": 0.6},
    {"temperature": 1.5, "top_k": 30, "min_p": 0.1},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 1.0, "repetition_penalty": 5.0},
    {"temperature": 1.0, "repetition_penalty": 0.6, "top_k": 3},
    {"temperature": 1.0, "logit_bias": {0: 3.5, 2: -100.0, 4: -1.25}},
    {"temperature": 1.3, "logit_bias": {1: 2.0, 3: 0.5}, "repetition_penalty": 1.4, "top_p": 0.9},
]


def logits_of(vocab: int, spread: float = 2.5) -> np.ndarray:
    return (np.random.default_rng(vocab).standard_normal(vocab) * spread).astype(np.float32)


class Grid:
    """Random numbers that are evenly spaced."""

    def __init__(self, count: int) -> None:
        self.numbers = iter((np.arange(count) + 0.5) / count)

    def random(self) -> float:
        return float(next(self.numbers))


def choice_of(prompt: list[int], vocab: int, **given: Any) -> TokenChoice:
    return TokenChoice("generate", SamplingOptions.checked("generate", given), list(prompt), vocab, 10**9)


def shares(given: dict[str, Any], logits: np.ndarray, prompt: list[int], count: int) -> np.ndarray:
    """How often each token is drawn of `count` times: its probability, to 1 of them."""
    drawn = np.zeros(len(logits))
    grid: Any = Grid(count)
    for _ in range(count):
        choice = choice_of(prompt, len(logits), **given)
        choice._generator = grid
        drawn[choice.choose(logits)] += 1
    return drawn / count


def expected_shares(given: dict[str, Any], logits: np.ndarray, prompt: list[int]) -> np.ndarray:
    """By the definitions, in float64."""
    x = logits.astype(np.float64)
    for token, bias in given.get("logit_bias", {}).items():
        x[token] += bias
    penalty = given.get("repetition_penalty", 1.0)
    for token in set(prompt):
        x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
    x = x / given["temperature"]
    if "top_k" in given:
        x[x < np.sort(x)[::-1][min(given["top_k"], len(x)) - 1]] = -np.inf
    order = np.argsort(-x)
    p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    if "top_p" in given:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= given["top_p"]]] = 0
    if "min_p" in given:
        p[p < given["min_p"] * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("given", RULES, ids=str)
def test_tokens_are_drawn_by_the_rules(given: dict[str, Any], vocab: int) -> None:
    logits, prompt, count = logits_of(vocab), [1, 3, 3, 0], 400
    drawn = shares(given, logits, prompt, count)
    expected = expected_shares(given, logits, prompt)
    assert (np.abs(drawn - expected) <= 1 / count).all()
    assert (drawn[expected == 0] == 0).all()


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("given", RULES, ids=str)
def test_the_rules_are_those_of_transformers(given: dict[str, Any], vocab: int) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    logits, prompt = logits_of(vocab), [1, 3, 3, 0]

    def bias(biases: dict[int, float]) -> Any:
        return transformers.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in biases.items()])

    steps: list[tuple[str, Any]] = [
        ("logit_bias", bias),
        ("repetition_penalty", transformers.RepetitionPenaltyLogitsProcessor),
        ("temperature", transformers.TemperatureLogitsWarper),
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ]
    x = torch.tensor(logits[None])
    for name, step in steps:
        if name in given:
            x = step(given[name])(torch.tensor([prompt]), x)
    theirs = torch.softmax(x.double(), -1)[0].numpy()
    expected = expected_shares(given, logits, prompt)
    np.testing.assert_array_equal(theirs > 0, expected > 0)
    np.testing.assert_allclose(theirs, expected, rtol=1e-5)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_tokens_chosen_before_change_the_logits(vocab: int) -> None:
    """By the definition of OpenAI and vLLM, where prompts do not count, and by transformers, before enough tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    prompt, new, ends = [1, 3, 3, 0], [2, 2, 4, 2], [0, 3]
    given: dict[str, Any] = {"frequency_penalty": 0.75, "presence_penalty": -1.5, "repetition_penalty": 1.5}
    seen: list[np.ndarray] = []
    for least in (4, 5):
        options = SamplingOptions.checked("generate", given | {"min_new_tokens": least, "temperature": 0.0})
        choice = TokenChoice("generate", options, list(prompt), vocab, 9, frozenset(ends))
        for token in new:
            choice.choose(logits_of(vocab))
            choice.tokens.append(token)
        x = torch.tensor(logits_of(vocab)[None])
        x = transformers.RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([prompt + new]), x)
        for token in set(new):
            x[0, token] -= 0.75 * new.count(token) - 1.5
        x = transformers.MinNewTokensLengthLogitsProcessor(len(prompt), least, ends)(torch.tensor([prompt + new]), x)
        seen.append(x[0].numpy())
        assert choice.choose(logits_of(vocab)) == int(x[0].argmax())
        np.testing.assert_allclose(choice._changed(logits_of(vocab)), seen[-1], rtol=1e-6)
    assert [np.isinf(x).sum() for x in seen] == [0, 2]


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_a_few_of_many_are_put_in_order_as_all_are(vocab: int) -> None:
    logits = logits_of(vocab)
    logits[:] = np.round(logits)  # many equals
    order = np.argsort(-logits, kind="stable")
    for count in {1, 2, vocab // 2, vocab - 1, vocab} - {0}:
        np.testing.assert_array_equal(sampling.largest(logits, count), order[:count])


def test_flat_logits_draw_beyond_the_few() -> None:
    vocab = sampling._FEW * 3
    assert (shares({"temperature": 1.0}, np.zeros(vocab, np.float32), [], vocab) == 1 / vocab).all()
    drawn = shares({"temperature": 1.0, "top_p": 0.6}, np.zeros(vocab, np.float32), [], vocab)
    assert np.flatnonzero(drawn)[-1] < 0.6 * vocab + 1
    assert np.flatnonzero(drawn)[-1] > 0.6 * vocab - 2


def test_repetition_is_penalized_without_draws_too() -> None:
    logits, choice = np.array([2.0, 3.0, -1.0, 1.9], np.float32), choice_of([], 4, repetition_penalty=1.6)
    for _ in range(4):
        choice.tokens.append(choice.choose(logits))
    assert choice.tokens == [1, 0, 3, 1], "3 becomes 1.875, 2 becomes 1.25, and then 1.9 becomes 1.1875"
    assert choice_of([1], 4, repetition_penalty=1.6).choose(logits) == 0


@pytest.mark.parametrize("given", [{"temperature": 1.0, "seed": 3}, {"repetition_penalty": 2.0}], ids=str)
def test_to_choose_again_changes_nothing(given: dict[str, Any]) -> None:
    once, twice = (choice_of([1, 2], 60, **given) for _ in range(2))
    for place in range(8):
        logits = logits_of(60) * (1 + place)
        assert twice.choose(logits) == twice.choose(logits) == once.choose(logits)
        once.tokens.append(once.choose(logits))
        twice.tokens.append(once.tokens[-1])


@pytest.mark.parametrize("penalty", [None, 1.5])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_a_choice_does_not_depend_on_the_others(vocab: int, penalty: float | None) -> None:
    """Of several sequences each draws as it does alone, and logits without a largest end their sequence only."""
    options = SamplingOptions(temperature=1.0, seed=0, repetition_penalty=penalty)
    logits = np.stack([logits_of(vocab), np.full(vocab, np.nan, np.float32), -logits_of(vocab)])
    choices = [TokenChoice("generate", options, [], vocab, 9, index=index) for index in range(3)]
    plain = TokenChoice("generate", SamplingOptions(), [], vocab, 9)
    for _ in range(5):
        first, error, last, largest = choose([*choices, plain], np.concatenate([logits, logits[:1]]))
        assert [first, last] == [choices[0].choose(logits[0]), choices[2].choose(logits[2])]
        assert largest == logits[0].argmax()
        assert isinstance(error, ValueError)
        assert str(error) == "generate: the largest logit of sequence 1 is nan"
        for choice, token in zip(choices, (first, 0, last), strict=True):
            choice.tokens.append(int(token))


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"min_p": -0.1}, ValueError, "generate: min_p must be from 0 to 1; got -0.1"),
        ({"min_p": 1.1}, ValueError, "min_p"),
        ({"min_p": True}, TypeError, "min_p"),
        ({"repetition_penalty": 0.0}, ValueError, "generate: repetition_penalty must be above 0; got 0.0"),
        ({"repetition_penalty": "1"}, TypeError, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, ValueError, "repetition_penalty"),
        ({"top_p": 0.0}, ValueError, "top_p"),
        ({"top_k": 0}, ValueError, "top_k"),
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"frequency_penalty": 2.5}, ValueError, "generate: frequency_penalty must be from -2 to 2; got 2.5"),
        ({"presence_penalty": "1"}, TypeError, "generate: presence_penalty"),
        ({"logit_bias": [1, 2]}, TypeError, "generate: logit_bias must be a dict of tokens and numbers; got"),
        ({"logit_bias": {"1": 2}}, TypeError, "generate: a token of logit_bias"),
        ({"logit_bias": {-1: 2}}, ValueError, "generate: a token of logit_bias must be from 0 to 9; got -1"),
        ({"logit_bias": {10: 2}}, ValueError, "generate: a token of logit_bias must be from 0 to 9; got 10"),
        ({"logit_bias": {3: 101}}, ValueError, "generate: logit_bias of token 3 must be from -100 to 100; got 101"),
        ({"logit_bias": {3: None}}, TypeError, "generate: logit_bias of token 3"),
        ({"min_new_tokens": 8}, ValueError, "generate: min_new_tokens must be from 0 to 7; got 8"),
    ],
    ids=str,
)
def test_bad_rules_are_refused(fault: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        SamplingOptions.checked("generate", {"temperature": 1.0} | fault, 10, 7)
