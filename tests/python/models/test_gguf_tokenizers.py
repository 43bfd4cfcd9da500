"""Tokenizers in GGUF files: how texts are split, what is a token of its own, and what texts begin and end with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import pytest

pytest.importorskip("tokenizers")

from mha_native.models.files.gguf.source import GGUFSource

SPACE = "\u2581"


def tokenizer(path: Path, metadata: dict[str, Any], architecture: str = "llama") -> Any:
    own, tensors = gguf_files.model(architecture)
    metadata = {name: given for name, given in (own | metadata).items() if given is not None}
    file = path / "model.gguf"
    file.write_bytes(gguf_files.contents(metadata, tensors))
    return GGUFSource(file).tokenizer()


def pieces(tokenizer: Any, text: str) -> list[str]:
    """The tokens of a text, as it has them."""
    return [text[begin:end] for begin, end in tokenizer.encode(text, add_special_tokens=False).offsets]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("gpt-2", "the cat", ["t", "he", " cat"]),
        ("default", "the cat", ["t", "he", " cat"]),
        # Two spaces before a word: one of them is its own.
        ("gpt-2", "a  the", ["a", " ", " the"]),
        # Numbers: as they are, digit by digit, and by threes from the left.
        ("gpt-2", " 1234", [" 1", "2", "3", "4"]),
        ("gpt-2", "1234", ["123", "4"]),
        ("smollm", "a  1234", ["a", "  ", "1", "2", "3", "4"]),
        ("starcoder", "123", ["1", "2", "3"]),
        ("llama-bpe", "1234123", ["123", "4", "12", "3"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("tekken", "123", ["1", "2", "3"]),
        # An apostrophe and an S: of either case in some.
        ("gpt-2", "x'S", ["x", "'", "S"]),
        ("llama-bpe", "x'S", ["x", "'S"]),
        # Line breaks: one by one where a word follows, or together.
        ("gpt-2", "a\n\nb", ["a", "\n", "\n", "b"]),
        ("llama-bpe", "a\n\nb", ["a", "\n\n", "b"]),
        ("qwen2", "a.\nb", ["a", ".\n", "b"]),
        ("gpt-2", "a.\nb", ["a", ".", "\n", "b"]),
    ],
)
def test_kinds_split_texts_in_their_own_ways(kind: str, text: str, expected: list[str], tmp_path: Path) -> None:
    assert pieces(tokenizer(tmp_path, {"tokenizer.ggml.pre": kind}), text) == expected


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    numbers = {
        kind: tokenizer(tmp_path, {"tokenizer.ggml.pre": kind}).encode("e\u0301").ids for kind in ("qwen2", "gpt-2")
    }
    assert numbers["qwen2"] == tokenizer(tmp_path, {}).encode("é").ids != numbers["gpt-2"]


@pytest.mark.parametrize(
    "text", ["", " ", "the cat", "\x00\n\t\r é 中 \U0001f600 ½", "<|endoftext|>", "a  <|endoftext|> b"]
)
def test_decoded_texts_are_what_they_were(text: str, tmp_path: Path) -> None:
    model = tokenizer(tmp_path, {})
    assert model.decode(model.encode(text).ids, skip_special_tokens=False) == text


def test_tokens_that_are_found_before_texts_are_split(tmp_path: Path) -> None:
    """Control tokens are special, user-defined ones are not, and no others are found."""
    vocabulary = gguf_files.byte_level_vocabulary(special=("<|endoftext|>", "<think>", "<none>"))
    vocabulary["tokenizer.ggml.token_type"][:3] = [3, 4, 1]
    count = gguf_files.V - len(vocabulary["tokenizer.ggml.tokens"])
    vocabulary["tokenizer.ggml.tokens"] += [f"[PAD{i}]" for i in range(count)]
    vocabulary["tokenizer.ggml.token_type"] += [5] * count
    model = tokenizer(tmp_path, vocabulary)
    encoding = model.encode("a<|endoftext|><think><none>")
    assert encoding.ids[1:3] == [0, 1]
    assert encoding.tokens[3:] == list("<none>")
    assert {number: token.special for number, token in model.get_added_tokens_decoder().items()} == {0: True, 1: False}
    assert model.decode([0, 1], skip_special_tokens=True) == "<think>"
    assert model.get_vocab_size() == gguf_files.V


@pytest.mark.parametrize(
    ("metadata", "begins", "ends"),
    [
        ({}, False, False),
        ({"tokenizer.ggml.add_bos_token": True}, True, False),
        ({"tokenizer.ggml.add_eos_token": True}, False, True),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, True, True),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True, False),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False, False),
    ],
)
def test_what_texts_begin_and_end_with(metadata: dict[str, Any], begins: bool, ends: bool, tmp_path: Path) -> None:
    model = tokenizer(tmp_path, metadata)
    text = model.encode("the", add_special_tokens=False).ids
    assert model.encode("the").ids == [1] * begins + text + [0] * ends
    assert model.encode("the", "the").ids == 2 * ([1] * begins + text + [0] * ends)
    assert model.encode("").ids == [1] * begins + [0] * ends


# Of SentencePiece: the score of a token is larger the earlier it is made.
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"thecaxy", "he", "the",
          f"{SPACE}the", "ca", "at", "cat", f"{SPACE}cat", SPACE * 2, "xy"]  # fmt: skip
SENTENCE_PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(PIECES) - 259)],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259),
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat", ["<s>", f"{SPACE}the", f"{SPACE}cat"]),
        ("the  cat", ["<s>", f"{SPACE}the", SPACE, f"{SPACE}cat"]),
        ("é", ["<s>", SPACE, "<0xC3>", "<0xA9>"]),
        ("\n", ["<s>", SPACE, "<0x0A>"]),
        # A space is put before each part of a text, also before one that begins with a space.
        (" the", ["<s>", SPACE, f"{SPACE}the"]),
        ("</s>the</s> the", ["<s>", "</s>", f"{SPACE}the", "</s>", SPACE, f"{SPACE}the"]),
        ("<unk>cat", ["<s>", "<unk>", f"{SPACE}cat"]),
        ("", ["<s>"]),
    ],
)
def test_sentence_pieces(text: str, expected: list[str], tmp_path: Path) -> None:
    model = tokenizer(tmp_path, SENTENCE_PIECES)
    assert model.encode(text).tokens == expected
    if "<" not in text:
        assert model.decode(model.encode(text).ids) == text


def test_sentence_pieces_without_a_first_space(tmp_path: Path) -> None:
    model = tokenizer(tmp_path, SENTENCE_PIECES | {"tokenizer.ggml.add_space_prefix": False})
    assert model.encode("the cat").tokens == ["<s>", "the", f"{SPACE}cat"]


def test_of_sentence_pieces_the_larger_score_is_merged_first(tmp_path: Path) -> None:
    tokens = [*PIECES[:259], *"abc", "ab", "bc"]
    for scores, expected in (([-1.0, -2.0], ["ab", "c"]), ([-2.0, -1.0], ["a", "bc"])):
        changes = {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * 262 + scores,
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
            "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.ggml.add_bos_token": False,
        }
        assert tokenizer(tmp_path, SENTENCE_PIECES | changes).encode("abc").tokens == expected


def test_spaces_of_gemma(tmp_path: Path) -> None:
    """Nothing is put before a text, and the order of tokens is that of merges."""
    changes = {"tokenizer.ggml.scores": [-1000.0] * len(PIECES)}
    model = tokenizer(tmp_path, SENTENCE_PIECES | changes, "gemma3")
    assert model.encode("the  cat").tokens == ["<s>", "the", SPACE, f"{SPACE}cat"]
    assert model.decode(model.encode("  the cat").ids) == "  the cat"


def test_tokens_of_spaces_in_gemma_are_found_before_texts_are_split(tmp_path: Path) -> None:
    """The longest one first, as in SentencePiece, where tokens of the user are no results of merges."""
    tokens = [*PIECES[:-2], "   ", "  ", "xy"]
    changes = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": [*SENTENCE_PIECES["tokenizer.ggml.token_type"][:-2], 4, 4, 1],
    }
    model = tokenizer(tmp_path, SENTENCE_PIECES | changes, "gemma3")
    assert model.encode("the     cat").tokens == ["<s>", "the", "   ", "  ", "cat"]
    assert model.decode(model.encode("the     cat").ids) == "the     cat"


def test_of_equal_scores_the_token_with_the_smaller_number_is_merged_first(tmp_path: Path) -> None:
    for made, expected in ((["ab", "cd", "abc"], ["ab", "cd"]), (["ab", "abc", "cd"], ["abc", "d"])):
        tokens = [*PIECES[:259], *"abcd", *made]
        changes = {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [-1000.0] * len(tokens),
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 7,
            "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.ggml.add_bos_token": False,
        }
        assert tokenizer(tmp_path, SENTENCE_PIECES | changes).encode("abcd").tokens == expected


def test_special_tokens_of_phi3_take_the_spaces_after_them(tmp_path: Path) -> None:
    """Except for the tokens that begin texts and stand for unknown characters."""
    for name, expected in (
        ("Phi-3 mini", ["</s>", f"{SPACE}the", "<s>", SPACE, f"{SPACE}the"]),
        ("another", ["</s>", SPACE * 2, f"{SPACE}the", "<s>", SPACE, f"{SPACE}the"]),
    ):
        changes = {"general.name": name, "tokenizer.ggml.add_bos_token": False}
        numbers = tokenizer(tmp_path, SENTENCE_PIECES | changes).encode("</s>  the<s> the").ids
        assert [PIECES[number] for number in numbers] == expected


NUM_TOKENS = gguf_files.V


@pytest.mark.parametrize(
    ("words", "metadata"),
    [
        ("tokenizer.ggml.pre must be 'default' or .*; got 'bloom'", {"tokenizer.ggml.pre": "bloom"}),
        ("tokenizer.ggml.pre must be .*; got None", {"tokenizer.ggml.pre": None}),
        ("has unknown entries: tokenizer.ggml.precompiled_charsmap", {"tokenizer.ggml.precompiled_charsmap": "x"}),
        ("tokens must be an array of texts; got None", {"tokenizer.ggml.tokens": None, "llama.vocab_size": 9}),
        ("tokens must be an array of texts", {"tokenizer.ggml.tokens": [1, 2], "llama.vocab_size": 9}),
        ("tokens must differ; got 'a' more than once", {"tokenizer.ggml.tokens": ["a", "b", "a"]}),
        (f"token_type must be an array of {NUM_TOKENS} numbers", {"tokenizer.ggml.token_type": [1, 2]}),
        ("token_type must be an array", {"tokenizer.ggml.token_type": [1.0] * NUM_TOKENS}),
        ("token_type must be of 1 to 6; got 0 to 0", {"tokenizer.ggml.token_type": [0] * NUM_TOKENS}),
        ("merges must be an array of texts; got None", {"tokenizer.ggml.merges": None}),
        ("merges must be two tokens and a space; got 'ab'", {"tokenizer.ggml.merges": ["ab"]}),
        ("merges must be two tokens and a space; got 'a b c'", {"tokenizer.ggml.merges": ["a b c"]}),
        ("model.gguf has no valid tokenizer: .*out of vocabulary", {"tokenizer.ggml.merges": ["a zz"]}),
        ("add_space_prefix must be False", {"tokenizer.ggml.add_space_prefix": True}),
        ("add_bos_token must be True or False; got 1", {"tokenizer.ggml.add_bos_token": 1}),
        ("bos_token_id must be there where add_bos_token is true",
         {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}),
        ("scores must be an array of", SENTENCE_PIECES | {"tokenizer.ggml.scores": None}),
        ("scores must be an array of", SENTENCE_PIECES | {"tokenizer.ggml.scores": [1] * len(PIECES)}),
        ("scores must be numbers; got nan", SENTENCE_PIECES | {"tokenizer.ggml.scores": [float("nan")] * len(PIECES)}),
        ("remove_extra_whitespaces must be False", SENTENCE_PIECES | {"tokenizer.ggml.remove_extra_whitespaces": True}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(words: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words) as error:
        tokenizer(tmp_path, metadata)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 600


def test_a_vocabulary_of_long_tokens_takes_no_long_time(tmp_path: Path) -> None:
    """All pairs of parts of a token are tried: of a long one there would be as many as it has characters."""
    tokens = [*PIECES, "a" * (1 << 20)]
    scores = {"tokenizer.ggml.scores": [0.0] * len(tokens), "tokenizer.ggml.token_type": [1] * len(tokens)}
    with pytest.raises(ValueError, match="tokens must have at most"):
        tokenizer(tmp_path, SENTENCE_PIECES | {"tokenizer.ggml.tokens": tokens} | scores)
