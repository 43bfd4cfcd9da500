"""The scheduler without a model: every sequence comes to its end, in order, within its pages."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from page_pool import PagePool

from mha_native.serving._scheduler import Run, Scheduler, Sequence


def next_token(tokens: list[int]) -> int:
    """What a model would choose: something that depends on every token so far."""
    return (sum((place + 1) * token for place, token in enumerate(tokens)) * 31 + len(tokens)) % 97


def alone(prompt: list[int], num_new: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_new):
        tokens.append(next_token(tokens))
    return tokens


class Batch:
    """A scheduler, its pool, and sequences of so many new tokens."""

    def __init__(
        self, num_pages: int, *, page_size: int = 4, most: int = 4, per_step: int = 8, share: bool = True
    ) -> None:
        self.pool = PagePool(num_pages, page_size, 2 * most if share else most)
        self.scheduler = Scheduler(self.pool, most, per_step, share)
        self.per_step, self.wanted, self.sequences = per_step, dict[Sequence, int](), list[Sequence]()

    def add(self, prompt: list[int], num_new: int) -> Sequence:
        sequence = Sequence(prompt)
        assert self.scheduler.needs(len(prompt) + num_new - 1) <= self.pool.num_pages
        self.wanted[sequence] = len(prompt) + num_new
        self.sequences.append(sequence)
        return sequence

    def step(self) -> list[Run]:
        runs = self.scheduler.plan(self.sequences)
        assert sum(run.end - run.first for run in runs) <= self.per_step
        assert len({run.sequence for run in runs}) == len(runs)
        self.pool.read(runs)
        for run in runs:
            tokens = run.sequence.tokens
            if run.end == len(tokens):
                tokens.append(next_token(tokens))
                run.sequence.has_ended = len(tokens) == self.wanted[run.sequence]
        self.forget()
        return runs

    def forget(self) -> None:
        for sequence in [sequence for sequence in self.sequences if sequence.has_ended]:
            self.scheduler.forget(sequence)
            self.sequences.remove(sequence)

    def finish(self, most_steps: int = 10_000) -> int:
        """Steps until all have ended; none of them may read nothing."""
        for steps in count():
            if not self.sequences:
                self.scheduler.release_kept()
                assert self.pool.free_pages == self.pool.num_pages
                return steps
            assert steps < most_steps
            assert self.step(), "sequences wait, and nothing is read"
        raise AssertionError


def test_a_sequence_alone() -> None:
    batch = Batch(8)
    sequence = batch.add([3, 1, 4], 5)
    assert [(run.first, run.end) for run in batch.step()] == [(0, 3)]
    assert [(run.first, run.end) for run in batch.step()] == [(3, 4)]
    assert batch.finish() == 3
    assert sequence.tokens == alone([3, 1, 4], 5)


def test_a_step_reads_the_tokens_of_all_first_and_then_prompts_by_what_is_left_of_them() -> None:
    batch = Batch(40)
    short, long, last = batch.add([1, 2], 9), batch.add(list(range(20)), 3), batch.add([7] * 5, 2)
    assert [(run.sequence, run.end - run.first) for run in batch.step()] == [(short, 2), (last, 5), (long, 1)]
    assert [(run.sequence, run.end - run.first) for run in batch.step()] == [(short, 1), (last, 1), (long, 6)]
    assert [(run.sequence, run.end - run.first) for run in batch.step()] == [(short, 1), (long, 7)]
    assert [(run.sequence, run.end - run.first) for run in batch.step()] == [(short, 1), (long, 6)]


def test_half_of_many_prompts_have_their_first_token_when_a_quarter_of_the_tokens_is_read() -> None:
    """64 prompts of 10 to 500 tokens at once. In the order in which they came, the median would be step 34."""
    batch = Batch(1200, page_size=64, most=64, per_step=256)
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.linspace(10, 500, 64).astype(int)).tolist()
    sequences = [batch.add(rng.integers(0, 97, length).tolist(), 64) for length in lengths]
    steps = dict.fromkeys(sequences, 0)
    for step in count(1):
        if not batch.sequences:
            break
        going = {run.sequence for run in batch.step()}
        for sequence, length in zip(sequences, lengths, strict=True):
            assert sequence in going or steps[sequence] == 0 or sequence.has_ended, "running requests go on"
            if len(sequence.tokens) > length and steps[sequence] == 0:
                steps[sequence] = step
    tokens_of_half = sum(sorted(lengths)[:32])
    assert np.median(list(steps.values())) <= 1.15 * tokens_of_half / 256
    assert max(steps.values()) <= -(-(sum(lengths) + 64 * 63) // 256)


def test_prompts_of_equal_length_keep_their_order() -> None:
    batch = Batch(200, most=40, per_step=40)
    given: list[Sequence] = []
    begun: dict[Sequence, int] = {}
    for _ in range(12):  # three in each step, in which two can be read
        given += [batch.add([len(given), *range(18)], 1) for _ in range(3)]
        begun |= {run.sequence: run.first for run in batch.step() if run.sequence not in begun}
    while batch.sequences:
        begun |= {run.sequence: run.first for run in batch.step() if run.sequence not in begun}
    assert list(begun) == given


@pytest.mark.parametrize("length", [24, 40, 56])
def test_short_prompts_that_keep_coming_do_not_hold_up_a_long_one(length: int) -> None:
    """They take all tokens of each step, and another request is the oldest."""
    batch = Batch(400, most=30, per_step=8, share=False)
    batch.add([1], 900)
    batch.step()
    long = batch.add([2] * length, 1)
    alone, steps = -(-length // 7), 0
    while not long.has_ended and steps <= 9 * alone:
        batch.add([3] * 7, 1)
        batch.step()
        steps += 1
    assert 2 * alone < steps <= 9 * alone, "short ones overtake it for eight times as long as it takes alone"
    batch.finish()


def test_sequences_that_come_later_join() -> None:
    batch = Batch(40)
    first = batch.add([1, 2, 3], 6)
    batch.step()
    second = batch.add([4, 5], 2)
    assert {run.sequence for run in batch.step()} == {first, second}
    batch.finish()
    assert (first.tokens, second.tokens) == (alone([1, 2, 3], 6), alone([4, 5], 2))


def test_no_more_than_max_sequences_run_and_those_that_wait_keep_their_order() -> None:
    batch = Batch(100, most=2)
    given = [batch.add([k], 3) for k in range(6)]
    begun: list[Sequence] = []
    while batch.sequences:
        runs = batch.step()
        assert len(runs) <= 2
        begun += [run.sequence for run in runs if run.sequence not in begun]
    assert begun == given


def test_a_prompt_that_does_not_fit_yet_waits_and_nobody_overtakes_it() -> None:
    batch = Batch(6, share=False)
    running, big, small = batch.add([1] * 8, 4), batch.add([2] * 15, 1), batch.add([3], 1)
    assert [run.sequence for run in batch.step()] == [running]
    while not running.has_ended:
        assert big not in {run.sequence for run in batch.step()}
        assert small.slot is None, "a small request overtakes a large one, which may wait for ever so"
    batch.finish()


def test_the_youngest_gives_its_pages_back_when_the_pool_is_full() -> None:
    batch = Batch(5, share=False, per_step=16)
    prompts = [[1, 2, 3, 4], [5, 6, 7, 8]]
    old, young = (batch.add(prompt, 12) for prompt in prompts)
    while young.slot is None or not batch.scheduler.num_preempted:
        batch.step()
        if batch.scheduler.num_preempted:
            break
    assert old.slot is not None
    assert young.slot is None
    assert 4 < len(young.tokens) < 16, "it was running, and has not ended"
    batch.finish()
    assert [old.tokens, young.tokens] == [alone(prompt, 12) for prompt in prompts]


def test_whole_pages_of_the_same_beginning_are_read_once() -> None:
    batch = Batch(30, per_step=64)
    beginning = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]  # two pages and a half
    first = batch.add([*beginning, 11, 12], 6)
    others = [batch.add([*beginning, k], 6) for k in range(3)]
    assert [run.sequence for run in batch.step()] == [first], "others wait for what is read already"
    runs = batch.step()
    assert [(run.first, run.end) for run in runs] == [(12, 13), (8, 11), (8, 11), (8, 11)]
    assert batch.pool.num_pages - batch.pool.free_pages == 4 + 3, (
        "three of the first one are a page longer than the shared"
    )
    late = batch.add([*beginning, 5], 1)
    batch.finish()
    for sequence in (first, *others, late):
        assert (
            sequence.tokens
            == alone(sequence.tokens[: batch.wanted[sequence] - (6 if sequence is not late else 1)], 6)[
                : batch.wanted[sequence]
            ]
        )


def test_a_sequence_that_has_ended_leaves_its_beginning() -> None:
    batch = Batch(30)
    prompt = list(range(9))
    first = batch.add(prompt, 4)
    while batch.sequences:
        batch.step()
    second = batch.add([*first.tokens[:12], 1], 2)  # the prompt and the answer, as in the next round of a conversation
    assert [(run.first, run.end) for run in batch.step()] == [(12, 13)]
    assert second.num_shared == 12
    batch.finish()


def test_all_of_a_prompt_but_its_last_token_may_be_shared() -> None:
    batch = Batch(30)
    batch.add([1] * 8, 1)
    while batch.sequences:
        batch.step()
    batch.add([1] * 8, 1)
    assert [(run.first, run.end) for run in batch.step()] == [(4, 8)], "the last token must be read, to choose the next"


def test_what_has_ended_gives_its_pages_back_when_others_need_them() -> None:
    batch = Batch(4)
    for k in range(5):
        batch.add([k] * 12, 4)
        while batch.sequences:
            batch.step()
    batch.finish()


def test_nothing_is_shared_unless_wanted() -> None:
    batch = Batch(30, share=False, per_step=64)
    given = [batch.add([1] * 9, 3) for _ in range(3)]
    assert [(run.first, run.end) for run in batch.step()] == [(0, 9)] * 3
    batch.finish()
    assert all(sequence.num_shared == 0 for sequence in given)


def test_the_oldest_goes_on_in_every_step_so_that_all_come_to_their_end() -> None:
    """Whatever comes behind it: many short requests, as many as there are steps, in a pool that is always full."""
    rng = np.random.default_rng(0)
    batch = Batch(12, most=3, per_step=4)
    for _ in range(400):
        length = int(rng.integers(1, 20))
        batch.add(rng.integers(0, 3, length).tolist(), int(rng.integers(1, 20)))
        oldest = batch.sequences[0]
        assert oldest in {run.sequence for run in batch.step()}
    batch.finish()
    assert batch.scheduler.num_preempted > 10


@pytest.mark.parametrize("seed", range(60))
def test_random_sequences_get_what_they_would_get_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    most = int(rng.integers(1, 6))
    page_size = int(rng.integers(1, 6))
    share = bool(rng.integers(2))
    batch = Batch(-(-45 // page_size) + int(rng.integers(0, 10)), page_size=page_size, most=most,
                  per_step=most + int(rng.integers(0, 20)), share=share)  # fmt: skip
    beginnings = [rng.integers(0, 3, 20).tolist() for _ in range(2)]
    given: list[tuple[Sequence, list[int], int]] = []
    for _ in range(int(rng.integers(5, 25))):
        length, num_new = int(rng.integers(0, 12)), int(rng.integers(1, 14))
        prompt = [*beginnings[int(rng.integers(2))][: int(rng.integers(1, 20))], *rng.integers(0, 3, length).tolist()]
        given.append((batch.add(prompt, num_new), prompt, num_new))
        for _ in range(int(rng.integers(0, 4))):
            batch.step()
        if rng.random() < 0.15:  # one is cancelled, wherever it is
            given.pop(int(rng.integers(len(given))))[0].has_ended = True
            batch.forget()
    batch.finish()
    assert all(sequence.tokens == alone(prompt, num_new) for sequence, prompt, num_new in given)


class Interrupted(BaseException):
    """What a signal raises."""


@pytest.mark.parametrize("seed", range(40))
def test_a_step_that_is_interrupted_anywhere_loses_nothing(seed: int, monkeypatch: Any) -> None:
    rng = np.random.default_rng(seed)
    batch = Batch(14, most=3, per_step=6)
    for name in ("fork", "shorten", "read", "lengths"):
        original = getattr(batch.pool, name)

        def interruptible(*arguments: Any, original: Any = original) -> Any:
            at = rng.random()
            if at < 0.04:
                raise Interrupted
            result = original(*arguments)
            if at > 0.96:
                raise Interrupted
            return result

        monkeypatch.setattr(batch.pool, name, interruptible)
    given = []
    for k in range(12):
        prompt = [1] * int(rng.integers(1, 20)) + [k] * int(rng.integers(0, 9))
        given.append((batch.add(prompt, 8), prompt))
    interrupted = 0
    for _ in range(3000):
        try:
            batch.forget()
            if not batch.sequences:
                batch.scheduler.release_kept()
                break
            batch.step()
        except Interrupted:
            interrupted += 1
    monkeypatch.undo()
    assert interrupted > 10
    assert batch.pool.free_pages == batch.pool.num_pages
    assert all(sequence.tokens == alone(prompt, 8) for sequence, prompt in given)
