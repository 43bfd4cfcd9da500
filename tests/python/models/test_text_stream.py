"""Text as it comes: whole characters, and nothing of a stop string."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
import tiny_tokenizers
import tokenizers

from mha_native.models.generation.text_stream import TextStream

LIBRARY = tiny_language_model.tokenizer()

TEXTS = ["plain words", "é", "naïve café", "日本語のテキスト", "a🙂b👩‍👩‍👧c", "\ufffd", "a\ufffdb", "ends in 🙂", ""]


def byte_tokens(text: str) -> list[int]:
    """Every byte a token."""
    library = LIBRARY
    letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [library.token_to_id(letter) for word, _ in letters for letter in word]


def decode(tokens: Sequence[int]) -> str:
    text: str = LIBRARY.decode(list(tokens), skip_special_tokens=True)
    return text


def pieces(tokens: list[int], prompt: Sequence[int] = (), stop: tuple[str, ...] = ()) -> list[str]:
    """What is shown after each token, and at the end."""
    stream = TextStream(decode, prompt, stop)
    shown = []
    for token in tokens:
        shown.append(stream.push(token))
        if stream.is_stopped:
            break
    return [*shown, stream.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "é", "🙂🙂🙂🙂"])
def test_characters_are_shown_whole(text: str, prompt: str) -> None:
    shown = pieces(byte_tokens(text), byte_tokens(prompt))
    assert "".join(shown) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)
    characters = len([piece for piece in shown if piece])
    assert characters == len(text) or "\ufffd" in text, "a character is shown as soon as it is whole"


def test_what_is_no_text_is_shown_as_the_tokenizer_decodes_it() -> None:
    rng = random.Random(0)
    for _ in range(200):
        tokens = [rng.randrange(tiny_language_model.VOCABULARY) for _ in range(rng.randrange(40))]
        prompt = [rng.randrange(tiny_language_model.VOCABULARY) for _ in range(3)]
        prompt += byte_tokens(" ")  # which begins with no rest of a character
        shown = pieces(tokens, prompt)
        assert "".join(shown) == decode([*byte_tokens(" "), *tokens])[1:]


def test_bytes_without_end_are_not_held_for_ever() -> None:
    byte = byte_tokens("é")[0]
    shown = pieces([byte] * 100)
    assert sum(bool(piece) for piece in shown) > 5
    assert max(map(len, shown)) < 20


@pytest.mark.parametrize("begin", [" ", ""])
def test_a_space_at_the_beginning_is_as_in_the_whole_text(begin: str) -> None:
    library = tiny_tokenizers.unigram()
    library.decoder = tokenizers.decoders.Metaspace()  # which drops the space before the first word
    prompt, answer = library.encode("the dog", add_special_tokens=False).ids, [library.token_to_id("▁dog")] * 3
    stream = TextStream(library.decode, prompt if begin else [], ())
    assert "".join([*map(stream.push, answer), stream.finish()]) == f"{begin}dog dog dog"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one\ntwo", ("\n",), ["o", "n", "e"]),
        ("ab##c", ("###",), ["a", "b", "##c"]),
        ("ab###c", ("###",), ["a", "b"]),
        ("aab", ("ab",), ["a"]),
        ("xabcd", ("bcd", "abce"), ["x", "a"]),
        ("abce", ("bcd", "abce"), []),
        ("stop", ("never", "x"), ["s", "t", "o", "p"]),
        ("a ne", ("never",), ["a", " ", "ne"]),
        ("é!", ("é",), []),
        ("aé!", ("!",), ["a", "é"]),
    ],
)
def test_stop_strings_are_never_shown_in_part(text: str, stop: tuple[str, ...], expected: list[str]) -> None:
    assert [piece for piece in pieces(byte_tokens(text), (), stop) if piece] == expected


def test_a_stop_string_inside_a_token_ends_the_text_before_it() -> None:
    library = LIBRARY
    token = library.token_to_id("Ġthe")
    assert pieces([*byte_tokens("a"), token, *byte_tokens("b")], (), ("h",))[:2] == ["a", " t"]
