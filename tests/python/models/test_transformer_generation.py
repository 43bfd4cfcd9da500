"""Tokens one by one over caches are those of the whole sequence recomputed from scratch."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from random_layers import causal_decoder, decoder, encoder, rows
from tolerance import assert_same_bits

import mha_native
from mha_native import Decoder, Encoder, generate, sinusoidal_positions
from mha_native.models.generation import engine

V, B, STEPS = 40, 3, 8
PROMPTS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, -1, 99], [7, -5, 1000, 0, 0]])  # what is behind a prompt is not read
LENGTHS = np.array([5, 3, 1])


def _table(model: Any, seed: int = 1) -> np.ndarray:
    return rows((V, model.embed_dim), model.dtype, seed)


def _models(dtype: Any) -> dict[str, Any]:
    return {
        "decoder only": encoder("pre-LN", dtype),
        "causal decoder": causal_decoder("pre-LN", dtype),
        "with memory": decoder("grouped", dtype),
    }


MODELS = ("decoder only", "causal decoder", "with memory")


def _memory(model: Any) -> dict[str, Any]:
    if not isinstance(model, Decoder):
        return {}
    return {"memory": rows((B, 6, model.memory_dim), model.dtype, 8), "memory_lengths": np.array([6, 2, 4])}


def _logits(model: Any, tokens: np.ndarray, b: int, table: np.ndarray, output: np.ndarray, **options: Any) -> Any:
    """Of the token after `tokens` [T] of sequence b, from scratch."""
    x = table[tokens] + sinusoidal_positions(len(tokens), model.embed_dim, dtype=model.dtype)
    if not isinstance(model, Decoder):
        y = model(x, is_causal=True, **options)
    else:
        memory = _memory(model)
        y = model(x, memory["memory"][b, : memory["memory_lengths"][b]], **options)
    return output @ y[-1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_steps_are_those_from_scratch(name: str, tied: bool, isa: str, dtype: Any, num_threads: int) -> None:
    model = _models(dtype)[name]
    table = _table(model)
    output = table if tied else _table(model, 2)
    options = {"window": (6, -1), "softcap": 20.0}
    steps = list(
        generate(
            model, PROMPTS, table, max_new_tokens=STEPS, prompt_lengths=LENGTHS,
            output_weight=None if tied else output, num_threads=num_threads, **_memory(model), **options,
        )
    )  # fmt: skip
    assert len(steps) == STEPS
    sequences = [prompt[:length] for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    for t, step in enumerate(steps):
        assert step.tokens.shape == (B,)
        assert step.tokens.dtype == np.int64
        assert step.logits.shape == (B, V)
        for b in range(B):
            expected = _logits(model, sequences[b], b, table, output, **options)
            assert_same_bits(step.logits[b], expected, label=f"step {t}, sequence {b}")
            assert step.tokens[b] == expected.argmax()
            sequences[b] = np.append(sequences[b], step.tokens[b])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first_room", [0, 3])
def test_caches_that_grow_hold_what_they_held(first_room: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _models(np.float32)[name]
    learned = rows((5 + STEPS, model.embed_dim), model.dtype, 4)
    for positions in ("sinusoidal", None, learned):
        arguments = {"prompt_lengths": LENGTHS, "positions": positions, **_memory(model)}

        def logits(**arguments: Any) -> np.ndarray:
            steps = generate(model, PROMPTS, _table(model), max_new_tokens=STEPS, **arguments)
            return np.stack([step.logits for step in steps])

        expected = logits(**arguments)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "FIRST_ROOM", first_room)
            assert_same_bits(logits(**arguments), expected)


@pytest.mark.parametrize("name", MODELS)
def test_memory_is_taken_as_it_is_needed(name: str) -> None:
    model = _models(np.float32)[name]
    tracemalloc.start()
    steps = generate(model, PROMPTS % V, _table(model), max_new_tokens=10**15, **_memory(model))
    first = next(steps)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert first.logits.shape == (B, V)
    assert most < 2 << 20, "bytes of arrays, with the positions of all tokens"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "seed": 3}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_does_not_depend_on_the_others(name: str, sampling: dict[str, Any], isa: str) -> None:
    model = _models(np.float32)[name]
    arguments = {"embeddings": _table(model), "max_new_tokens": STEPS, **sampling}
    together = list(generate(model, PROMPTS, prompt_lengths=LENGTHS, **arguments, **_memory(model)))
    again = list(generate(model, PROMPTS, prompt_lengths=LENGTHS, **arguments, **_memory(model)))
    mine = {argument: array[:1] for argument, array in _memory(model).items()}
    alone = list(generate(model, PROMPTS[0], **arguments, **mine))
    for step, same, first in zip(together, again, alone, strict=True):
        assert step.tokens.tolist() == same.tokens.tolist()
        assert_same_bits(step.logits, same.logits)
        assert_same_bits(step.logits[:1], first.logits)
        assert step.tokens[:1].tolist() == first.tokens.tolist()


def test_a_stop_token_ends_its_sequence() -> None:
    model = encoder("pre-LN", np.float32)
    arguments = {"model": model, "prompts": PROMPTS, "prompt_lengths": LENGTHS, "embeddings": _table(model)}
    arguments["output_weight"] = _table(model, 2)
    free = np.stack([step.tokens for step in generate(**arguments, max_new_tokens=STEPS)])  # [STEPS, B]
    assert len(np.unique(free)) > 4, "tokens hardly differ"
    for stop in np.unique(free):
        ends = [np.flatnonzero(free[:, b] == stop) for b in range(B)]
        ends = [int(end[0]) if len(end) else STEPS for end in ends]
        steps = list(generate(**arguments, max_new_tokens=STEPS, stop_token=int(stop)))
        assert len(steps) == min(max(ends) + 1, STEPS)
        for t, step in enumerate(steps):
            expected = [free[t, b] if t <= ends[b] else stop for b in range(B)]
            assert step.tokens.tolist() == expected, f"stop {stop}, step {t}"


def _drawn(logits: np.ndarray, count: int, **sampling: Any) -> np.ndarray:
    """What is drawn `count` times by a model whose logits are always these: its result is its last norm's bias."""
    model = Encoder(1, len(logits), 1, 1, final_norm=True)
    state = model.state_dict()
    state["norm.weight"], state["norm.bias"] = 0 * state["norm.weight"], logits.astype(np.float32)
    model.load_state_dict(state)
    table = np.eye(len(logits), dtype=np.float32)
    prompts = np.zeros((count, 1), np.int64)
    (step,) = generate(model, prompts, table, max_new_tokens=1, **sampling)
    assert_same_bits(step.logits, np.tile(logits.astype(np.float32), (count, 1)))
    return step.tokens


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"temperature": 1.0}, [0, 1, 2, 3]),
        ({"temperature": 0.5}, [0, 1, 2, 3]),
        ({"temperature": 1.0, "top_k": 2}, [1, 3]),
        ({"temperature": 1.0, "top_k": 1}, [3]),
        ({"temperature": 1.0, "top_k": 9}, [0, 1, 2, 3]),
        ({"temperature": 1.0, "top_p": 0.39}, [3]),
        ({"temperature": 1.0, "top_p": 0.41}, [1, 3]),
        ({"temperature": 1.0, "top_p": 0.75}, [0, 1, 3]),
        ({"temperature": 1.0, "top_p": 1.0}, [0, 1, 2, 3]),
        ({"temperature": 1.0, "top_p": 1e-9}, [3]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.7}, [1, 3]),
        ({"temperature": 2.0, "top_p": 0.39}, [1, 3]),
    ],
    ids=str,
)
def test_draws_have_their_probabilities(sampling: dict[str, Any], kept: list[int]) -> None:
    probabilities, count = np.array([0.2, 0.3, 0.1, 0.4]), 4000
    drawn = np.bincount(_drawn(np.log(probabilities), count, seed=0, **sampling), minlength=4)
    expected = np.zeros(4)
    expected[kept] = probabilities[kept] ** (1 / sampling["temperature"])
    expected /= expected.sum()
    assert (drawn[expected == 0] == 0).all()
    deviation = np.sqrt(count * expected * (1 - expected))
    assert (np.abs(drawn - count * expected) <= 5 * deviation).all(), drawn


def test_the_first_of_equals_is_chosen() -> None:
    assert _drawn(np.array([1.0, 2.0, 2.0]), 2).tolist() == [1, 1]
    assert _drawn(np.array([1.0, 2.0, 2.0]), 2, temperature=1e-9, top_k=1).tolist() == [1, 1]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
def test_a_tiny_temperature_draws_the_largest(temperature: float) -> None:
    assert _drawn(np.array([1.0, 2.5, -3e38, 2.0]), 50, temperature=temperature, seed=0).tolist() == [1] * 50
    assert _drawn(np.array([-3e38, -1e38, 0.0]), 50, temperature=temperature, seed=0).tolist() == [2] * 50
    drawn = _drawn(np.array([2.0, 1.0, 2.0]), 400, temperature=temperature, seed=0)
    assert 140 < (drawn == 0).sum() < 260
    assert set(drawn.tolist()) == {0, 2}


def test_shapes_are_checked_before_anything_is_made() -> None:
    # A generator of random numbers for each of 2^20 sequences takes 20 s.
    prompts, table = np.zeros((2**20, 1), np.int64), np.ones((40, 16), np.float32)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="generate: memory must have the batch size of the prompts, 1048576; got 2"):
        generate(
            Decoder(1, 16, 2, 8),
            prompts,
            table,
            max_new_tokens=1,
            memory=np.ones((2, 3, 16), np.float32),
            temperature=1.0,
        )
    assert time.monotonic() - begin < 10


def test_seeds() -> None:
    logits = np.zeros(30)
    first, same, other = (_drawn(logits, 50, temperature=1.0, seed=seed).tolist() for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert len(set(first)) > 10, "sequences draw for themselves"


def test_positions() -> None:
    model = encoder("usual", np.float32)
    table, prompt = _table(model), np.array([1, 2, 3])

    def tokens(**options: Any) -> np.ndarray:
        return np.stack([step.logits for step in generate(model, prompt, table, max_new_tokens=4, **options)])

    sinusoidal = tokens()
    assert_same_bits(tokens(positions=sinusoidal_positions(6, 64)), sinusoidal)
    assert_same_bits(tokens(positions=np.zeros((9, 64), np.float32)), tokens(positions=None))
    assert not np.array_equal(sinusoidal, tokens(positions=None))
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    assert not np.array_equal(tokens(positions=None, alibi_slopes=slopes), tokens(positions=None))


def test_more_work_is_done_only_when_it_is_asked_for() -> None:
    model = encoder("usual", np.float32)
    steps = generate(model, [1, 2], _table(model), max_new_tokens=1000)
    first = next(steps)
    assert first.tokens.shape == (1,)
    token = int(first.tokens[0])
    first.tokens[:] = 3  # which belongs to the caller
    table = _table(model)
    assert_same_bits(first.logits[0], _logits(model, np.array([1, 2]), 0, table, table))
    assert_same_bits(next(steps).logits[0], _logits(model, np.array([1, 2, token]), 0, table, table))
    steps.close()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"model": mha_native.MultiHeadAttention(16, 2)}, TypeError, ["model", "MultiHeadAttention"]),
        ({"model": Decoder(1, 16, 2, 8)}, ValueError, ["Decoder", "memory"]),
        ({"memory": np.ones((2, 3, 16), np.float32)}, ValueError, ["Encoder", "memory"]),
        (
            {"model": Decoder(1, 16, 2, 8), "memory": np.ones((3, 4, 16), np.float32)},
            ValueError,
            ["memory", "batch", "2", "3"],
        ),
        ({"prompts": np.ones((2, 3))}, ValueError, ["prompts", "float64"]),
        ({"prompts": np.ones((2, 0), int)}, ValueError, ["prompts", "[2, 0]"]),
        ({"prompts": np.ones((2, 3, 1), int)}, ValueError, ["prompts", "[2, 3, 1]"]),
        ({"prompts": np.array([[1, 40]])}, ValueError, ["prompts", "39", "40"]),
        ({"prompts": np.array([[1, -1]])}, ValueError, ["prompts", "-1"]),
        ({"prompt_lengths": np.array([1, 0])}, ValueError, ["prompt_lengths", "[1, 0]"]),
        ({"prompt_lengths": np.array([1, 4])}, ValueError, ["prompt_lengths", "[1, 4]"]),
        ({"prompt_lengths": np.array([1, 2, 3])}, ValueError, ["prompt_lengths", "[3]"]),
        ({"prompt_lengths": np.array([1.0, 2.0])}, ValueError, ["prompt_lengths", "float64"]),
        ({"embeddings": np.ones((40, 16))}, TypeError, ["embeddings", "float32", "float64"]),
        ({"embeddings": np.ones((40, 15), np.float32)}, ValueError, ["embeddings", "16", "[40, 15]"]),
        ({"embeddings": np.ones((0, 16), np.float32)}, ValueError, ["embeddings", "[0, 16]"]),
        ({"embeddings": [[1.0]]}, TypeError, ["embeddings", "list"]),
        ({"output_weight": np.ones((41, 16), np.float32)}, ValueError, ["output_weight", "40", "41"]),
        ({"positions": np.ones((6, 16), np.float32)}, ValueError, ["positions", "7", "6"]),
        ({"positions": "learned"}, TypeError, ["positions", "str"]),
        ({"max_new_tokens": 0}, ValueError, ["max_new_tokens", "0"]),
        ({"max_new_tokens": 2.5}, TypeError, ["max_new_tokens", "2.5"]),
        ({"stop_token": 40}, ValueError, ["stop_token", "40"]),
        ({"stop_token": -1}, ValueError, ["stop_token", "-1"]),
        ({"stop_token": 1.5}, TypeError, ["stop_token", "integer", "1.5"]),
        ({"stop_token": "2"}, TypeError, ["stop_token", "integer", "'2'"]),
        ({"stop_token": np.array([1, 2])}, TypeError, ["stop_token", "integer"]),
        ({"memory_lengths": np.array([1, 2])}, ValueError, ["memory_lengths", "memory"]),
        ({"num_threads": 0}, ValueError, ["num_threads", "0"]),
        ({"num_threads": 1.5}, TypeError, ["num_threads", "1.5"]),
        ({"temperature": "hot"}, TypeError, ["temperature", "'hot'"]),
        ({"temperature": None}, TypeError, ["temperature", "None"]),
        ({"temperature": float("inf")}, ValueError, ["temperature", "inf"]),
        ({"top_p": "half"}, TypeError, ["top_p", "'half'"]),
        ({"temperature": -1.0}, ValueError, ["temperature", "-1"]),
        ({"temperature": float("nan")}, ValueError, ["temperature", "nan"]),
        ({"top_k": 0}, ValueError, ["top_k", "0"]),
        ({"top_p": 0.0}, ValueError, ["top_p", "0"]),
        ({"top_p": 1.5}, ValueError, ["top_p", "1.5"]),
        ({"key_mask": np.ones((2, 3), bool)}, TypeError, ["unexpected", "key_mask"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_wrong_calls(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    good = {
        "model": Encoder(1, 16, 2, 8, seed=0),
        "prompts": np.ones((2, 3), int),
        "embeddings": np.ones((40, 16), np.float32),
        "max_new_tokens": 5,
    }
    with pytest.raises(kind) as error:
        generate(**(good | fault))  # before the first step is asked for
    assert str(error.value).startswith("generate: ")
    for word in words:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ({"window": "wide"}, TypeError),
        ({"window": (-2, 0)}, ValueError),
        ({"scale": "1"}, TypeError),
        ({"softcap": -1.0}, ValueError),
        ({"sinks": np.ones(3, np.float32)}, ValueError),
        ({"alibi_slopes": np.ones(4, np.int64)}, TypeError),
    ],
    ids=str,
)
def test_wrong_options_are_found_in_the_call(option: dict[str, Any], kind: type[Exception], name: str) -> None:
    model = _models(np.float32)[name]
    with pytest.raises(kind, match=f": {next(iter(option))} must be"):
        generate(model, PROMPTS % V, _table(model), max_new_tokens=3, **_memory(model), **option)


def test_logits_without_a_largest() -> None:
    model = Encoder(1, 16, 2, 8, seed=0)
    table = np.ones((4, 16), np.float32)
    output = table.copy()
    output[2, 5] = np.nan
    with pytest.raises(ValueError, match="generate: the largest logit of sequence 0 is nan"):
        next(generate(model, [1], table, output_weight=output, max_new_tokens=1))


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model = encoder("usual", np.float32)
    table = _table(model)
    ours = [step.tokens.tolist() for step in generate(model, [[1, 2]], table, max_new_tokens=3)]
    theirs = generate(model, torch.tensor([[1, 2]]), torch.from_numpy(table), max_new_tokens=3)
    assert [step.tokens.tolist() for step in theirs] == ours
