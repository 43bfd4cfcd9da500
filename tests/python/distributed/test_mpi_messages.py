"""Messages between ranks: what arrives is what was sent, and what has been said is not said again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16

from mha_native.distributed._mpi_messages import _FORMS, ALIGNMENT, Reader, Writer
from mha_native.distributed._partition import Piece

STEP = ("attend", "name", 1, np.ones((1, 8, 1, 64), np.float32), np.array([7]), {"is_causal": True}, {}, False, None)


def _assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.tobytes() == expected.tobytes()
        assert actual.ctypes.data % 16 == 0
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            _assert_same(one, other)
    elif isinstance(expected, dict):
        _assert_same(list(actual.items()), list(expected.items()))
    else:
        assert actual == expected


CONTENTS = [
    STEP,
    True,
    [(), [], {}, None, 1, True, 1.0, "a", b"b"],
    ("append", [(Piece(0, 3, 4), np.arange(6.0)[::-2], np.arange(24).reshape(2, 3, 4).T)]),
    (np.array(2.5), np.zeros((3, 0, 2), np.int8), np.ones(5, bool), np.ones((2, 1), BFLOAT16), np.arange(3)),
    {"window": (3, 0), "window of a list": [3, 0], "nested": {"slopes": np.ones(8, np.float16)}},
]


def test_what_arrives_is_what_was_sent() -> None:
    writer, reader = Writer(), Reader()
    for turn in range(3):
        for i, content in enumerate(CONTENTS):
            header, arrived = reader.read(writer.message(100 + turn, i, content))
            assert header[:2] == (100 + turn, i)
            assert (header.form_bytes > 0) == (turn == 0), "a form is said once"
            _assert_same(arrived, content)


@pytest.mark.parametrize("other", [1, 1.0])
def test_numbers_that_are_equal_keep_their_types(other: Any) -> None:
    writer, reader = Writer(), Reader()
    for content in (True, other, True):
        assert type(reader.read(writer.message(0, 0, (content,)))[1][0]) is type(content)


def test_the_oldest_form_is_forgotten_by_both() -> None:
    writer, reader = Writer(), Reader()
    said = set()
    for number in [*range(_FORMS + 5), 2, _FORMS + 4, 2, 8, 3]:
        header, arrived = reader.read(writer.message(0, 0, ("step", number, np.array([number]))))
        _assert_same(arrived, ("step", number, np.array([number])))
        if header.form_bytes == 0:
            said.add(number)
    assert said == {_FORMS + 4, 2, 8}, "0 to 4 are forgotten, then 5 and 6, and 3 is new again"
    assert len(writer._said) == _FORMS


def test_a_step_is_little_more_than_its_numbers() -> None:
    writer = Writer()
    writer.message(0, 0, STEP)
    assert writer.message(1, 0, STEP).nbytes == 64 + STEP[3].nbytes + 64, "a header, the query, and its position"


def test_a_message_is_whole_lines_whatever_the_names_are() -> None:
    # MPI sends lines: what is left behind the last whole one would stay here.
    writer = Writer()
    for length in range(ALIGNMENT):
        for content in ("n" * length, {"n" * length: np.ones(7)}, ("n" * length, np.ones(length, np.int8))):
            for turn in range(2):  # its form is said, then known
                message = writer.message(turn, 0, content)
                assert message.size % ALIGNMENT == 0, f"{message.size} bytes for {content}"


def test_a_message_has_memory_of_its_own() -> None:
    query = np.ones(4)
    message = Writer().message(0, 0, query)
    query[:] = 2
    assert Reader().read(message)[1].tolist() == [1, 1, 1, 1]
