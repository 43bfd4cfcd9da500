"""Requests of a Batcher: completions, events of steps, copies, conversations, tenants and statistics."""

from __future__ import annotations

import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
from tiny_language_model import VOCABULARY

from mha_native.models import CausalLM, Completion
from mha_native.serving import Batcher, QueueFull, Request, StepEvent

SMALL: dict[str, Any] = {"max_sequences": 3, "num_pages": 5, "tokens_per_step": 60}  # requests give pages back
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the apple"}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=400)


@pytest.fixture(scope="module")
def model(directory: Path) -> CausalLM:
    return CausalLM.from_pretrained(directory)


def drive(batcher: Batcher) -> int:
    for steps in range(5000):
        if not batcher.run_step():
            return steps + 1
    raise AssertionError(batcher)


def same(found: Completion, expected: Completion) -> bool:
    return found._replace(tokens=found.tokens.tolist()) == expected._replace(tokens=expected.tokens.tolist())


def random_options(rng: np.random.Generator, model: CausalLM) -> dict[str, Any]:
    some: dict[str, Any] = {
        "temperature": 1.2,
        "top_k": 30,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "logit_bias": {int(rng.integers(VOCABULARY)): 4.0},
        "stop_token_ids": rng.integers(0, VOCABULARY, 3).tolist(),
        "min_new_tokens": 5,
        "stop": ["e", "xyz"],
        "logprobs": int(rng.integers(0, 4)),
        "prompt_logprobs": int(rng.integers(0, 4)),
    }
    chosen = {name: value for name, value in some.items() if rng.random() < 0.25}
    return {"max_new_tokens": int(rng.integers(6, 170)), "seed": int(rng.integers(99)), **chosen}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(2, 30))])
def test_completions_and_events_are_those_of_each_request_alone(model: CausalLM, seed: int) -> None:
    """Also after steps that fail when their tokens have been read, and are done again."""
    rng = np.random.default_rng(seed)
    events: list[list[StepEvent]] = []
    batcher = Batcher(model, on_step=events.append, **SMALL)
    pool = batcher._queue._caches
    original = type(pool).append

    def append(*arguments: Any) -> Any:
        rows = original(pool, *arguments)
        if rng.random() < 0.15:
            raise MemoryError
        return rows

    pool.append = append  # type: ignore[method-assign]
    beginning = rng.integers(2, VOCABULARY, 150).tolist()
    given = []
    for _ in range(7):
        prompt = [*beginning[: rng.integers(150)], *rng.integers(2, VOCABULARY, rng.integers(1, 30)).tolist()]
        options = random_options(rng, model)
        given.append((batcher.submit(prompt, **options), prompt, options))
    for _ in range(5000):
        try:
            if not batcher.run_step():
                break
        except MemoryError:
            pass
    assert batcher.statistics.preempted or seed, "the first seed gives pages back"
    of_request: dict[Request, list[StepEvent]] = {request: [] for request, _, _ in given}
    for event in (event for step in events for event in step):
        of_request[event.request].append(event)
    for request, prompt, options in given:
        expected, heard = model.complete(prompt, **options), of_request[request]
        assert same(request.completion(), expected)
        assert (request.finish_reason, request.stop_text) == (expected.finish_reason, expected.stop_text)
        assert "".join(event.piece for event in heard) == expected.text
        assert [token for event in heard for token in event.tokens] == expected.tokens.tolist()
        assert tuple(one for event in heard for one in event.logprobs) == (expected.logprobs or ())
        assert [event.finish_reason for event in heard] == [None] * (len(heard) - 1) + [expected.finish_reason]
    assert all(len({event.request for event in step}) == len(step) for step in events)


def test_one_call_for_each_step_of_all_requests(model: CausalLM) -> None:
    calls: list[list[StepEvent]] = []
    batcher = Batcher(model, on_step=calls.append)
    requests = [batcher.submit([5, k], max_new_tokens=6) for k in range(9)]
    steps = 0
    while batcher.run_step():
        steps += 1
    assert len(calls) == steps + 1 == 6
    assert all([event.request for event in call] == requests for call in calls)
    running, waiting = (batcher.submit([5, 6], max_new_tokens=50, timeout=timeout) for timeout in (None, 1e-9))
    batcher.run_step()
    running.cancel()
    batcher.run_step()
    last = batcher.submit([5, 7])
    batcher.close()
    ends = {event.request: event.finish_reason for call in calls[6:] for event in call if event.finish_reason}
    assert ends == {waiting: "timeout", running: "cancelled", last: "cancelled"}
    assert [each.finish_reason for each in (waiting, running, last)] == ["timeout", "cancelled", "cancelled"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_exception_in_on_step_ends_the_requests_of_its_events(model: CausalLM, error: type[BaseException]) -> None:
    reasons: Counter[str | None] = Counter()
    is_listed = threading.Lock()

    def on_step(events: list[StepEvent]) -> None:
        reasons.update(event.finish_reason for event in events)
        with is_listed:
            fails = any(event.request in broken and event.tokens for event in events)
        if fails:
            raise error("of its own")

    broken: list[Request] = []
    with Batcher(model, max_sequences=1, on_step=on_step) as batcher:
        first = batcher.submit([5, 6], max_new_tokens=3)
        assert first.result(30) == model.generate([5, 6], max_new_tokens=3)
        with is_listed:
            broken.append(batcher.submit([5, 7], max_new_tokens=3))
        with pytest.raises(error if issubclass(error, Exception) else RuntimeError, match="of its own"):
            broken[0].result(30)
        assert broken[0].finish_reason == "error"
        assert batcher.submit([5, 8], max_new_tokens=3).result(30) == model.generate([5, 8], max_new_tokens=3)
    assert reasons == {None: 5, "length": 2, "error": 1}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_to_cancel_while_the_prompt_is_read_frees_its_pages_before_the_second_step(model: CausalLM, steps: int) -> None:
    batcher = Batcher(model, max_sequences=2, tokens_per_step=40)
    other = batcher.submit([5, 6], max_new_tokens=30)
    request = batcher.submit([7] * 300)
    for _ in range(steps):
        batcher.run_step()
    assert request.statistics.new_tokens == 0
    assert batcher.statistics.used_pages > 1
    assert request.cancel()
    batcher.run_step()
    assert batcher.statistics.used_pages == 1, "of the other request"
    drive(batcher)
    assert other.result() == model.generate([5, 6], max_new_tokens=30)


def test_copies_draw_by_seeds_of_their_own_and_share_the_pages_of_the_prompt(model: CausalLM) -> None:
    prompt = np.random.default_rng(0).integers(2, VOCABULARY, 140).tolist()
    batcher = Batcher(model, max_waiting=5, tokens_per_step=400)
    options: dict[str, Any] = {"temperature": 1.5, "max_new_tokens": 9}
    requests = batcher.submit(prompt, n=4, seed=7, **options)
    for message, count in (("leaves no room for 2 more", 2), ("leaves no room for 9 more", 9)):
        with pytest.raises(QueueFull, match=message):
            batcher.submit(prompt, n=count, **options)
    for _ in range(2):
        batcher.run_step()
    assert batcher.statistics.used_pages == 3 + 3
    drive(batcher)
    expected = [model.generate(prompt, seed=7 + i, **options) for i in range(4)]
    assert [request.result() for request in requests] == expected
    assert len(set(expected)) == 4
    assert [request.statistics.cached_tokens for request in requests] == [0, 128, 128, 128]
    for wrong, kind in (({"n": 0}, ValueError), ({"n": 2, "on_text": print}, TypeError), ({"n": 1.5}, TypeError)):
        with pytest.raises(kind, match=r"^Batcher.submit: .*\bn\b"):
            batcher.submit(prompt, **wrong)


def test_a_conversation_gets_the_answer_of_chat(model: CausalLM, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    batcher = Batcher(model)
    request = batcher.submit_chat(MESSAGES, max_new_tokens=20, logprobs=1)
    copies = batcher.submit_chat(MESSAGES, n=2, max_new_tokens=20)
    drive(batcher)
    tokens = model.tokenize(model.apply_chat_template(MESSAGES), add_special_tokens=False)
    assert request.statistics.prompt_tokens == len(tokens)
    assert [each.result() for each in (request, *copies)] == [model.chat(MESSAGES, max_new_tokens=20)] * 3
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([MESSAGES, MESSAGES], {}, "messages must be one conversation; got a list of 2"),
        ("hello", {}, "messages must be a list of dicts"),
        (MESSAGES, {"variables": 3}, "variables must be a dict; got int"),
        (MESSAGES, {"cache_salt": 3}, "cache_salt must be a str; got int"),
        (MESSAGES, {"beams": 3}, "unexpected keyword argument 'beams'"),
    ]
    for messages, options, words in wrong:
        with pytest.raises(TypeError, match=rf"^Batcher.submit_chat: .*{words}"):
            batcher.submit_chat(messages, **options)


@pytest.mark.parametrize("ending", ["{{ eos_token }}\n", " {{ eos_token }}", "\n", "{{ bos_token }}"])
def test_an_answer_ends_with_the_token_that_the_template_writes_after_answers(ending: str, tmp_path: Path) -> None:
    """Although config.json does not say that it ends texts."""
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}{{ bos_token }}{{ m.content }}" + ending + "{% endfor %}"
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": template}
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path, {"tokenizer_config.json": settings}))
    special = {"eos": tiny_language_model.END, "bos": tiny_language_model.BEGIN}
    ends = next((special[name] for name in special if name in ending), None)
    batcher = Batcher(model)
    options: dict[str, Any] = {"max_new_tokens": 9, "logit_bias": {token: 90 for token in [ends] if token is not None}}
    request = batcher.submit_chat(MESSAGES, **options)
    drive(batcher)
    assert request.finish_reason == ("length" if ends is None else "stop")
    assert list(request.tokens())[-1:] == [ends] or ends is None
    assert request.result() == model.chat(MESSAGES, **options)
    tokens = model.tokenize(model.apply_chat_template(MESSAGES), add_special_tokens=False)
    assert model.complete(tokens, **options).finish_reason == "length"


def test_tenants_do_not_share_pages(model: CausalLM) -> None:
    prompt = np.random.default_rng(1).integers(2, VOCABULARY, 200).tolist()
    batcher = Batcher(model)
    cached = {}
    for salt in (None, "a", "b", "a", None, "c", "b"):
        request = batcher.submit(prompt, max_new_tokens=3, cache_salt=salt)
        together = [batcher.submit(prompt, max_new_tokens=3, cache_salt=salt) for _ in range(2)]
        drive(batcher)
        assert request.result() == model.generate(prompt, max_new_tokens=3)
        cached.setdefault(salt, []).append(request.statistics.cached_tokens)
        assert [each.statistics.cached_tokens for each in together] == [192, 192]
    assert cached == {None: [0, 192], "a": [0, 192], "b": [0, 192], "c": [0]}
    statistics = batcher.statistics
    assert (statistics.prefix_queries, statistics.prefix_hits) == (21 * 200, 17 * 192)
    whole = batcher.submit(prompt, max_new_tokens=1, prompt_logprobs=0)
    drive(batcher)
    assert whole.statistics.cached_tokens == whole.statistics.shared_tokens == 0
    alone = Batcher(model, share_prefixes=False)
    for _ in range(2):
        alone.submit(prompt, max_new_tokens=2)
        drive(alone)
    assert (alone.statistics.prefix_queries, alone.statistics.prefix_hits) == (0, 0)


def test_statistics_count_waits_and_tokens_that_were_never_read(model: CausalLM) -> None:
    batcher = Batcher(model, max_sequences=1)
    now = 100.0
    batcher._queue.clock = lambda: now
    first, second = (batcher.submit([k] * 70, max_new_tokens=2) for k in (5, 5))
    assert math.isnan(second.statistics.queue_seconds)
    now = 101.0
    batcher.run_step()
    now = 103.5
    batcher.run_step()
    batcher.run_step()
    now = 105.0
    drive(batcher)
    assert [each.statistics.queue_seconds for each in (first, second)] == [1.0, 3.5]
    assert [each.statistics.cached_tokens for each in (first, second)] == [0, 64]
    assert batcher.statistics.batch_sizes == {1: 4}
    small = Batcher(model, **SMALL)
    requests = [small.submit([k] * 100, max_new_tokens=100) for k in range(3)]
    drive(small)
    assert small.statistics.preempted > 0
    assert sum(small.statistics.batch_sizes.values()) == small.statistics.steps
    assert sum(size * count for size, count in small.statistics.batch_sizes.items()) >= small.statistics.new_tokens
    assert [each.statistics.cached_tokens for each in requests] == [0] * 3, "tokens that are read again do not count"
