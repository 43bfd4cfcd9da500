"""Which token may follow in a text of Whisper: each rule alone, on a vocabulary of 25 tokens."""

from typing import Any

import numpy as np
import pytest

from mha_native.speech._rules import TokenRules

END, START, NO_TIMESTAMPS, FIRST, SIZE = 10, 11, 14, 15, 25  # 0 to 9: words; 15 to 24: timestamps
NOTHING = np.array([], np.int64)


def allowed(written: list[int], logits: np.ndarray | None = None, num_prefix: int = 0, **options: Any) -> set[int]:
    """The tokens that the rules allow after a text, by logits that are all 0 unless they are given."""
    given = {"has_timestamps": True, "last_initial": FIRST + 5, "suppressed": NOTHING, "suppressed_first": NOTHING}
    rules = TokenRules(END, FIRST, **(given | options))
    row = (np.zeros(SIZE) if logits is None else logits).astype(np.float32)[None].copy()
    rules.apply(row, np.array([written], np.int64).reshape(1, -1), num_prefix)
    return set(np.flatnonzero(row[0] > -np.inf).tolist())


def probable(*tokens: int) -> np.ndarray:
    """Logits in which these tokens are far more probable than all others together."""
    logits = np.full(SIZE, -20.0)
    logits[list(tokens)] = 20
    return logits


def test_a_text_begins_with_a_timestamp_that_is_early() -> None:
    assert allowed([]) == set(range(FIRST, FIRST + 6))
    assert allowed([], last_initial=FIRST) == {FIRST}


def test_text_follows_the_first_timestamp_and_each_pair() -> None:
    words = set(range(FIRST)) - {NO_TIMESTAMPS}
    assert allowed([FIRST]) == words
    assert allowed([FIRST, 1, FIRST + 2, FIRST + 2], probable(FIRST + 3)) == words


def test_a_single_timestamp_is_completed_or_ends_the_text_and_none_goes_back() -> None:
    # All timestamps together are improbable: then the end may follow, and other special tokens that are not suppressed.
    after = set(range(END, NO_TIMESTAMPS)) | set(range(FIRST + 4, SIZE))
    assert allowed([FIRST, 1, FIRST + 4], probable(END)) == after
    # A timestamp after text is later than the one before.
    assert allowed([FIRST, 1, FIRST + 4, FIRST + 4, 2, 3], probable(2)) & set(range(FIRST, SIZE)) == set(
        range(FIRST + 5, SIZE)
    )


def test_timestamps_that_are_more_probable_together_than_any_word_are_chosen() -> None:
    logits = np.full(SIZE, -20.0)
    logits[FIRST + 3 : FIRST + 7] = 1.0  # four times the probability of each
    logits[2] = 2.0  # e times
    assert allowed([FIRST, 1], logits) == set(range(FIRST + 1, SIZE))
    logits[2] = 2.5  # 4.48 times
    assert 2 in allowed([FIRST, 1], logits)
    # Timestamps up to the last one do not count: two of four are left.
    logits[2] = 2.0
    assert 2 in allowed([FIRST, 1, FIRST + 4, FIRST + 4, 1], logits)


def test_without_timestamps_there_are_no_rules_of_time() -> None:
    assert allowed([], has_timestamps=False) == set(range(SIZE))


@pytest.mark.parametrize("num_prefix", [0, 2])
def test_suppressed_tokens_never_come_and_some_not_first(num_prefix: int) -> None:
    given: dict[str, Any] = {
        "suppressed": np.array([3]),
        "suppressed_first": np.array([4, END]),
        "has_timestamps": False,
    }
    prefix = [1, 2][:num_prefix]
    assert allowed(prefix, num_prefix=num_prefix, **given) == set(range(SIZE)) - {3, 4, END}
    assert allowed([*prefix, 5], num_prefix=num_prefix, **given) == set(range(SIZE)) - {3}


def test_the_rules_of_time_begin_after_the_prefix() -> None:
    assert allowed([FIRST + 4, 1], num_prefix=2) == set(range(SIZE)) - {NO_TIMESTAMPS}
    assert allowed([FIRST + 4, 1, 2], probable(2), num_prefix=2) == set(range(SIZE)) - {NO_TIMESTAMPS}


def test_a_run_of_tokens_comes_once_also_in_the_prefix() -> None:
    given: dict[str, Any] = {"has_timestamps": False, "no_repeat_ngram_size": 2}
    assert allowed([1, 2, 3, 1], num_prefix=2, **given) == set(range(SIZE)) - {2}


def test_the_penalty_of_written_tokens_makes_them_rarer_once() -> None:
    logits = np.array([[2.0, -2.0, 2.0, -2.0]], np.float32)
    rules = TokenRules(10, 20, False, 0, NOTHING, NOTHING, repetition_penalty=4.0)
    rules.apply(logits, np.array([[0, 1, 0]]), 0)
    np.testing.assert_array_equal(logits, [[0.5, -8.0, 2.0, -2.0]])
