"""What is no text: refused with the name of its type, and never read as something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder


@pytest.fixture
def tiny(tmp_path: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))


@pytest.mark.parametrize(
    "texts",
    [b"abc", bytearray(b"abc"), memoryview(b"abc"), b"", 3, None, {"a": 1}, {"a"}, frozenset(), 1.5, np.array("dog"),
     np.array([["dog"]]), object()],
    ids=lambda texts: type(texts).__name__,
)  # fmt: skip
def test_what_are_no_texts(texts: Any, tiny: SentenceEncoder) -> None:
    words = rf"texts must be .*; got {type(texts).__name__}$"
    with pytest.raises(TypeError, match=rf"^SentenceEncoder\.encode: {words}"):
        tiny.encode(texts)
    with pytest.raises(TypeError, match=rf"^SentenceEncoder\.encode_batches: {words}"):
        tiny.encode_batches(texts)  # before anything is read


def test_a_text_is_not_read_character_by_character(tiny: SentenceEncoder) -> None:
    with pytest.raises(TypeError, match=r"^SentenceEncoder\.encode_batches: texts must be .*; got str$"):
        tiny.encode_batches("dog")


@pytest.mark.parametrize("element", [b"dog", 3, None, ["dog"], np.bytes_(b"dog")], ids=lambda x: type(x).__name__)
def test_an_element_that_is_no_text(element: Any, tiny: SentenceEncoder) -> None:
    with pytest.raises(TypeError, match=rf"texts must be str; got {type(element).__name__} at 1$"):
        tiny.encode(["dog", element])


def test_texts_of_any_kind(tiny: SentenceEncoder) -> None:
    texts = ["dog", "the cat", ""]
    expected = tiny.encode(texts)
    for others in (tuple(texts), iter(texts), np.array(texts), np.array(texts, object), dict.fromkeys(texts).keys()):
        assert_same_bits(tiny.encode(others), expected)
    assert_same_bits(tiny.encode(np.str_("dog")), expected[0])
