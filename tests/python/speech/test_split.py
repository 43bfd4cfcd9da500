"""The segments of the text of a window, and where the next window begins."""

import pytest

from mha_native.speech._batched import _chunks
from mha_native.speech._transcribe import clips, split

FIRST = 100  # the token of the time 0; a timestamp is 20 ms


@pytest.mark.parametrize(
    ("tokens", "parts", "advance", "is_closed"),
    [
        # A pair ends a segment; the text after the last pair is read again.
        ([100, 1, 2, 150, 150, 3, 160, 160, 4], [(10.0, 11.0), (11.0, 11.2)], 120, False),
        ([100, 1, 150, 150], [(10.0, 11.0)], 100, False),
        # A single timestamp at the end: nothing follows in the window.
        ([100, 1, 150, 160, 2, 200], [(10.0, 11.0), (11.2, 12.0)], None, True),
        # Without a pair, the whole window is a segment, up to the last timestamp if it is not 0.
        ([100, 1, 2, 200], [(10.0, 12.0)], None, True),
        ([100, 1, 2], [(10.0, 15.0)], None, False),
        ([1, 2], [(10.0, 15.0)], None, False),
        ([], [(10.0, 15.0)], None, False),
        # A pair at the begin of the window does not move it: the caller goes on to the next one.
        ([100, 1, 100, 100, 2], [(10.0, 10.0)], 0, False),
    ],
)
def test_texts_are_cut_at_pairs_of_timestamps(
    tokens: list[int], parts: list[tuple[float, float]], advance: int | None, is_closed: bool
) -> None:
    found, moves, closes = split(tokens, FIRST, 10.0, 5.0)
    assert [(part.start, part.end) for part in found] == [pytest.approx(part) for part in parts]
    assert (moves, closes) == (advance, is_closed)
    together = [token for part in found for token in part.tokens]
    assert together == tokens[: len(together)]
    assert len(together) == len(tokens) or advance is not None


def test_parts_of_a_recording_end_with_it() -> None:
    assert clips([], 500) == clips([0.0], 500) == [(0, 500)]
    assert clips([1.0, 2.5, 3.0], 500) == [(100, 250), (300, 500)]
    assert clips([1.0, 9.0], 500) == [(100, 500)]


def test_a_span_of_speech_that_is_longer_than_a_window_is_cut() -> None:
    assert _chunks([(0, 3), (5, 30), (40, 44)], 10) == [(0, 3), (3, 13), (13, 23), (23, 32)]
