"""Batcher: each request gets what it would get alone, whatever the others do."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
from tiny_language_model import VOCABULARY

from mha_native.models import CausalLM
from mha_native.serving import Batcher, QueueFull, Request

POSITIONS = 400


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=POSITIONS)


@pytest.fixture(scope="module")
def model(directory: Path) -> CausalLM:
    return CausalLM.from_pretrained(directory)


def drive(batcher: Batcher, most: int = 5000) -> int:
    for steps in range(most):
        if not batcher.run_step():
            return steps + 1
    raise AssertionError(f"not done after {most} steps: {batcher}")


def num_lost(batcher: Batcher) -> int:
    """Pages that are not free when nothing is kept, after `drive`."""
    scheduler = batcher._queue.scheduler
    scheduler.release_kept()
    return scheduler._pool.num_pages - scheduler._pool.free_pages


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Some texts take more pages than their prompts."""
    count = int(rng.integers(1, 30) if rng.random() < 0.5 else rng.integers(130, 180))
    options: dict[str, Any] = {"max_new_tokens": count, "seed": int(rng.integers(1000))}
    if rng.random() < 0.5:
        options |= {"temperature": float(rng.uniform(0.5, 2)), "top_k": int(rng.integers(2, 90))}
        options["top_p"] = float(rng.uniform(0.5, 1))
    if rng.random() < 0.3:
        options["repetition_penalty"] = float(rng.uniform(1.05, 2))
    return options


def random_prompts(rng: np.random.Generator, count: int, longest: int) -> list[list[int]]:
    """Some of them begin alike."""
    beginning = rng.integers(2, VOCABULARY, longest).tolist()
    cuts = rng.integers(0, longest, count)
    tails = [rng.integers(2, VOCABULARY, int(rng.integers(1, 40))).tolist() for _ in range(count)]
    return [beginning[:cut] + tail for cut, tail in zip(cuts, tails, strict=True)]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(1, 9))])
def test_tokens_are_those_of_each_request_alone(model: CausalLM, share: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes: dict[str, Any] = {"max_sequences": 5, "num_pages": 9, "tokens_per_step": 48}
    batcher = Batcher(model, share_prefixes=share, **sizes)
    given: list[tuple[Request, list[int], dict[str, Any]]] = []
    for prompt in random_prompts(rng, 8, 150):
        options = random_options(rng)
        given.append((batcher.submit(prompt, **options), prompt, options))
        for _ in range(int(rng.integers(0, 3))):
            batcher.run_step()
    drive(batcher)
    for request, prompt, options in given:
        assert list(request.tokens()) == model.generate_tokens(prompt, **options).tolist()
        assert request.result() == model.generate(prompt, **options) == "".join(request)
    assert num_lost(batcher) == 0
    if not share:
        assert not any(request.statistics.shared_tokens for request, _, _ in given)


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])
def test_weights_of_fewer_bits(directory: Path, weight_dtype: Any) -> None:
    model = CausalLM.from_pretrained(directory, weight_dtype=weight_dtype)
    batcher = Batcher(model, max_sequences=3, num_pages=5, tokens_per_step=40)
    prompts = random_prompts(np.random.default_rng(1), 8, 150)
    requests = [batcher.submit(prompt, max_new_tokens=12) for prompt in prompts]
    drive(batcher)
    for request, prompt in zip(requests, prompts, strict=True):
        assert list(request.tokens()) == model.generate_tokens(prompt, max_new_tokens=12).tolist()


def test_texts_end_where_they_end_alone(model: CausalLM, tmp_path: Path) -> None:
    prompts = ["the apple", "a", "é, the 🙂 of the"]
    free = model.generate(prompts, max_new_tokens=20)
    stop = free[1][len(free[1]) // 2 :][:2]
    end = int(model.generate_tokens(prompts[0], max_new_tokens=20)[6])
    files = {"generation_config.json": {"eos_token_id": end}}
    ending = CausalLM.from_pretrained(tiny_language_model.write(tmp_path, files, n_positions=POSITIONS))
    for one in (model, ending):
        batcher = Batcher(one)
        pieces: dict[str, list[str | None]] = {prompt: [] for prompt in prompts}
        requests = [
            batcher.submit(prompt, max_new_tokens=20, stop=[stop, "never"], on_text=pieces[prompt].append)
            for prompt in prompts
        ]
        drive(batcher)
        for request, prompt in zip(requests, prompts, strict=True):
            expected = one.generate(prompt, max_new_tokens=20, stop=stop)
            assert request.result() == expected
            assert list(request) == pieces[prompt][:-1]
            assert pieces[prompt][-1] is None
        assert [one.generate(prompt, max_new_tokens=20) for prompt in prompts] != [
            r.result() for r in requests
        ] or one is ending


def test_a_text_ends_where_the_positions_do(model: CausalLM) -> None:
    batcher = Batcher(model)
    prompts = [[5] * (POSITIONS - 3), [5] * POSITIONS]
    requests = [batcher.submit(prompt) for prompt in prompts]
    drive(batcher)
    assert [list(request.tokens()) for request in requests] == [
        model.generate_tokens(prompt).tolist() for prompt in prompts
    ]


def test_from_many_threads(model: CausalLM) -> None:
    prompts = random_prompts(np.random.default_rng(2), 40, 60)
    expected = list(model.generate(prompts, max_new_tokens=10))
    found: list[Any] = [None] * len(prompts)

    def client(k: int) -> None:
        try:
            request = batcher.submit(prompts[k], max_new_tokens=10)
            if k % 3 == 0:
                next(iter(request))  # and the iterator is dropped
            found[k] = "".join(request) if k % 2 else request.result()
        except BaseException as error:
            found[k] = error

    before = set(threading.enumerate())
    with Batcher(model, max_sequences=6, num_pages=20) as batcher:
        threads = [threading.Thread(target=client, args=(k,)) for k in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == expected
    statistics = batcher.statistics
    assert (statistics.waiting, statistics.running, statistics.new_tokens) == (0, 0, 400)
    assert not any(thread.name.startswith("mha_native.serving") for thread in {*threading.enumerate()} - before)


def test_prefixes_are_shared_over_pages(model: CausalLM) -> None:
    beginning = np.random.default_rng(3).integers(2, VOCABULARY, 200).tolist()
    batcher = Batcher(model, max_sequences=8, tokens_per_step=400)
    requests = [batcher.submit([*beginning, k], max_new_tokens=5) for k in range(2, 10)]
    batcher.run_step()
    batcher.run_step()
    statistics = batcher.statistics
    assert [request.statistics.shared_tokens for request in requests] == [0] + [192] * 7
    assert statistics.num_pages - statistics.free_pages == 3 + 8
    drive(batcher)
    for k, request in enumerate(requests):
        assert list(request.tokens()) == model.generate_tokens([*beginning, k + 2], max_new_tokens=5).tolist()
    assert num_lost(batcher) == 0


def test_time_outs_of_requests_that_wait_and_that_run(model: CausalLM) -> None:
    batcher = Batcher(model, max_sequences=1)
    now = 100.0
    batcher._queue.clock = lambda: now
    calls: list[str | None] = []
    running = batcher.submit([5, 6], max_new_tokens=50, timeout=3)
    waiting = batcher.submit([5, 7], timeout=5, on_text=calls.append)
    last = batcher.submit([5, 8], max_new_tokens=4)
    for _ in range(4):
        batcher.run_step()
    assert not running.done
    now = 103.0
    batcher.run_step()
    with pytest.raises(TimeoutError, match=r"Batcher.submit: the request has not ended in its timeout, 3.0 s"):
        running.result()
    with pytest.raises(TimeoutError):
        assert [next(tokens) for tokens in [running.tokens()] for _ in range(5)] == []
    now = 106.0
    assert batcher.run_step()
    with pytest.raises(TimeoutError):
        list(waiting)
    assert calls[-1] is None
    drive(batcher)
    assert list(last.tokens()) == model.generate_tokens([5, 8], max_new_tokens=4).tolist()
    assert num_lost(batcher) == 0


def test_result_waits_no_longer_than_wanted(model: CausalLM) -> None:
    batcher = Batcher(model)
    request = batcher.submit([5], max_new_tokens=3)
    with pytest.raises(TimeoutError, match=r"Request.result: the request has not ended in 0.01 s; it goes on"):
        request.result(timeout=0.01)
    drive(batcher)
    assert request.result(0) == model.generate([5], max_new_tokens=3)


def test_as_many_wait_as_may_wait(model: CausalLM) -> None:
    batcher = Batcher(model, max_sequences=1, max_waiting=2)
    batcher.submit([5])
    batcher.run_step()
    second = batcher.submit([5])
    batcher.submit([5])
    with pytest.raises(QueueFull, match=r"Batcher.submit: 2 requests wait, as many as max_waiting; try again later"):
        batcher.submit([5])
    second.cancel()
    batcher.submit([5], max_new_tokens=1)
    drive(batcher)


def test_close_ends_what_is_going_on(model: CausalLM) -> None:
    calls: list[str | None] = []

    def on_text(piece: str | None) -> None:
        calls.append(piece)
        end = time.monotonic() + 30
        while not batcher._queue._is_closed:  # no text comes to its end before
            assert time.monotonic() < end
            time.sleep(0.001)

    with Batcher(model, max_sequences=2) as batcher:
        requests = [batcher.submit([5, k], max_new_tokens=390, on_text=on_text) for k in range(5)]
        next(requests[0].tokens())
    for request in requests:
        with pytest.raises(CancelledError, match=r"Batcher.close: the Batcher was closed"):
            request.result(10)
    assert calls.count(None) == 5
    batcher.close()
    for call in (lambda: batcher.submit([5]), batcher.run_step, batcher.start):
        with pytest.raises(RuntimeError, match=r"Batcher.\w+: the Batcher is closed"):
            call()


def test_close_without_a_thread(model: CausalLM) -> None:
    batcher = Batcher(model)
    request = batcher.submit([5])
    batcher.run_step()
    batcher.close()
    with pytest.raises(CancelledError):
        list(request)


@pytest.mark.parametrize("starts", [False, True])
def test_a_callback_may_submit_cancel_and_close(model: CausalLM, starts: bool) -> None:
    batcher = Batcher(model)
    others: list[Request] = []

    def on_text(piece: str | None) -> None:
        if piece is None:
            return
        if not others:
            others.append(batcher.submit([7], max_new_tokens=3))
            others.append(batcher.submit([8], max_new_tokens=3))
            others[1].cancel()
        elif others[0].done:
            batcher.close()

    request = batcher.submit([65, 66, 67], max_new_tokens=200, on_text=on_text)
    if starts:
        batcher.start()
    else:
        while not request.done:
            batcher.run_step()
    with pytest.raises(CancelledError):
        request.result(30)
    assert others[0].result(10) == model.generate([7], max_new_tokens=3)
    with pytest.raises(CancelledError):
        others[1].result(10)


def test_one_thread_steps(model: CausalLM) -> None:
    with Batcher(model) as batcher:
        with pytest.raises(RuntimeError, match=r"Batcher.run_step: the Batcher has a thread that steps"):
            batcher.run_step()
        with pytest.raises(RuntimeError, match=r"Batcher.start: the Batcher was started before"):
            batcher.start()
    batcher = Batcher(model)
    found: list[BaseException] = []

    def on_text(piece: str | None) -> None:
        try:
            batcher.run_step()
        except RuntimeError as error:
            found.append(error)

    batcher.submit([5], max_new_tokens=2, on_text=on_text)
    drive(batcher)
    assert "another step is under way" in str(found[0])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"max_sequences": 0}, ValueError, "max_sequences"),
        ({"page_size": 1.5}, TypeError, "page_size"),
        ({"page_size": 48}, ValueError, "page_size"),
        ({"tokens_per_step": 63}, ValueError, "tokens_per_step must be at least max_sequences, 64, .*; got 63"),
        ({"num_pages": -1}, ValueError, "num_pages"),
        ({"share_prefixes": 2}, TypeError, "share_prefixes"),
        ({"max_waiting": 0}, ValueError, "max_waiting"),
        ({"num_threads": 0}, ValueError, "num_threads"),
        ({"cache_dtype": "complex64"}, TypeError, "cache_dtype must be"),
    ],
)
def test_arguments_that_break_a_rule(model: CausalLM, arguments: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=rf"^Batcher: .*{message}"):
        Batcher(model, **arguments)


def test_a_model_of_another_kind() -> None:
    with pytest.raises(TypeError, match=r"^Batcher: model must be a CausalLM; got str"):
        Batcher("SmolLM2")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "message"),
    [
        ([], {}, TypeError, "prompt must be one text"),
        (["a", "b"], {}, TypeError, r"prompt must be one text, or its tokens \[T\]; got a list of 2"),
        ([1, VOCABULARY], {}, ValueError, "prompt: tokens must be from 0 to"),
        ([5] * (POSITIONS + 1), {}, ValueError, "prompt must have no more tokens"),
        (None, {}, TypeError, "prompt must be a text"),
        ("a", {"timeout": 0}, ValueError, "timeout must be above 0; got 0"),
        ("a", {"timeout": "soon"}, TypeError, "timeout"),
        ("a", {"on_text": 3}, TypeError, "on_text must be a function; got int"),
        ("a", {"num_threads": 1}, TypeError, "num_threads is an argument of Batcher"),
        ("a", {"stop": ""}, ValueError, "stop must be no empty str"),
        ("a", {"seed": -1}, ValueError, "seed must be an integer"),
        ("a", {"max_new_tokens": 0}, ValueError, "max_new_tokens"),
        ("a", {"beams": 2}, TypeError, "unexpected keyword argument 'beams'"),
        (
            [5] * 200,
            {"max_new_tokens": 150},
            ValueError,
            "200 tokens of prompt and 150 new ones take 6 pages of 64, and",
        ),
    ],
)
def test_a_request_that_breaks_a_rule(model: CausalLM, prompt: Any, options: Any, kind: Any, message: str) -> None:
    batcher = Batcher(model, num_pages=5)
    with pytest.raises(kind, match=f"^Batcher.submit: .*{message}"):
        batcher.submit(prompt, **options)
    assert not batcher.run_step()
