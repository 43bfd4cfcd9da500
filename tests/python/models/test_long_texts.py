"""Of a long text only a beginning is tokenized: the tokens that count are those of the whole text."""

from __future__ import annotations

import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mha_native.models import SentenceEncoder
from mha_native.models.text import long_texts as _long_texts
from mha_native.models.text.long_texts import LongTexts

# Pieces of texts: what a tokenizer of BERT splits, joins, leaves out, or looks for before it splits anything.
PIECES = [
    " ", "\t", "\n", "\r", "\u3000", "\u2028", "\x85", "\0", "\ufffd", "\x07", "\u200b", "\ufeff",
    "a", "b", "ab", "the", "dog", "unbelievable", "Z", "9", "x" * 40, "_", "'", "!", ".", "-", "\u2014", "\u00bf",
    "e\u0301", "\u0301", "\u0301\u0323", "\u00e9", "\u00df", "\u0130", "\u03a3", "\ufb01", "\uac00", "\u1112\u1161",
    "\u4e2d", "\u56fd", "\uf900", "\u0e01\u0e33", "\u0915\u094d", "\U0001f600", "\U0002f800", "\U0001d165\U0001d16d",
    "[MASK]", "[MASK", "MASK]", "[", "]", "[CLS]", "[UNK]", "##b",
    "[MA\0\0SK]", "<a-b-e-x>", "<a-b-e-",
]  # fmt: skip
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "dog",
    "un",
    "##believ",
    "##able",
    "!",
    "[",
    "]",
    "mask",
]
LETTERS = ["-", "a", "b", "e", "x", "z", "9", "\u4e2d", "\u56fd", "_", "'", ".", "\uac00", "\u0e01"]


def bert_tokenizer(max_tokens: int, longest_word: int = 30, **normalizer: Any) -> Any:
    """A small tokenizer of the kind that models of the BERT family have."""
    words = [*VOCABULARY, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    result = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {word: i for i, word in enumerate(words)}, unk_token="[UNK]", max_input_chars_per_word=longest_word
        )
    )
    result.normalizer = tokenizers.normalizers.BertNormalizer(**normalizer)
    result.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    result.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    result.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<a-b-e-x>"])
    result.enable_truncation(max_tokens)
    return result


def random_text(rng: random.Random) -> str:
    pieces = rng.sample(PIECES, rng.randint(1, 8))
    text = ""
    for _ in range(rng.randint(1, 200)):
        text += rng.choice(pieces) * rng.choice([1, 1, 1, 2, 5, 60])
    return text


@pytest.mark.parametrize(
    "normalizer", [{}, {"strip_accents": False, "lowercase": False}, {"handle_chinese_chars": False}]
)
@pytest.mark.parametrize("max_tokens", [3, 4, 9])
@pytest.mark.parametrize("times", [200, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_the_beginning_has_the_tokens_of_the_text(
    times: int, max_tokens: int, normalizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small steps, so that texts end everywhere.
    monkeypatch.setattr(_long_texts, "_LONG", 2)
    monkeypatch.setattr(_long_texts, "_FIRST_TRY", 2)
    monkeypatch.setattr(_long_texts, "_NEXT_TRY", 2)
    tokenizer = bert_tokenizer(max_tokens, **normalizer)
    long_texts = LongTexts(tokenizer, max_tokens)
    rng = random.Random(times)
    shorter = 0
    for _ in range(times):
        text = random_text(rng)
        beginning = long_texts.beginning(text)
        assert tokenizer.encode(beginning).ids == tokenizer.encode(text).ids, (text, beginning)
        shorter += len(beginning) < len(text)
    assert shorter > times // 4


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: unicodedata.name(piece[0], "control"))
def test_a_word_that_goes_on_beyond_the_end(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_long_texts, "_LONG", 0)
    monkeypatch.setattr(_long_texts, "_FIRST_TRY", 1)
    tokenizer = bert_tokenizer(4)
    long_texts = LongTexts(tokenizer, 4)
    for before in ("", "a", "a b ", "a b a b", "a b [MASK", "a b !", "a <a-b-e-"):
        for after in ("", "b", " b", "K] b", "x> b", "\u0301", "x" * 50):
            text = before + piece + after
            assert tokenizer.encode(long_texts.beginning(text)).ids == tokenizer.encode(text).ids, text


LONG_TEXTS: dict[str, Callable[[int], str]] = {
    "words": lambda n: "the dog " * (n // 8),
    "a word": lambda n: "z" * n,
    "words late": lambda n: "z" * n + " the dog" * 300,
    "blanks": lambda n: "dog" + " " * n + "the dog",
    "zeros": lambda n: "dog" + "\0" * n + "the dog",
    "no text": lambda n: "\ufffd" * n,
    "base64": lambda n: "QUJDabc+/" * (n // 9),
    "Chinese": lambda n: "中国" * (n // 6),
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_the_pretrained_model_on_long_texts(name: str, model_directory: Path) -> None:
    model = SentenceEncoder.from_pretrained(model_directory)
    whole = tokenizers.Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    whole.no_padding()
    whole.enable_truncation(256)
    text = LONG_TEXTS[name](100_000)
    assert list(model._tokenizer.encode_batch([text, "dog"])) == [whole.encode(text).ids, whole.encode("dog").ids]
    assert model._tokenizer.encode_words(text)[1] == whole.encode(text).tokens


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the memory of a process")
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_long_text_takes_little_memory_and_time(name: str, model_directory: Path) -> None:
    program = (
        "import re, sys, time\n"
        "from mha_native.models import SentenceEncoder\n"
        "def memory(name):\n"
        "    return 1024 * int(re.search(name + r':\\s*(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "model = SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "model.encode('word ' * 300)\n"
        "text = sys.stdin.read()\n"
        "before = memory('VmRSS')\n"
        "open('/proc/self/clear_refs', 'w').write('5')  # the most so far is what there is now\n"
        "start = time.process_time()\n"
        "model.encode(text)\n"
        "print(memory('VmHWM') - before, time.process_time() - start)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(model_directory)],
        input=LONG_TEXTS[name](8_000_000),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    peak, seconds = map(float, result.stdout.split())
    assert peak < 64 << 20
    assert seconds < 2


def tokenizer_without(*parts: str) -> Any:
    """`bert_tokenizer`, with something in it for which no beginning is known to have the tokens of a text."""
    tokenizer = bert_tokenizer(4)
    if "model" in parts:
        tokenizer.model = tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")
    if "normalizer" in parts:
        tokenizer.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(r".*\bdog"), "")
    if "pre_tokenizer" in parts:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    if "clean_text" in parts:
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(clean_text=False)
    if "added" in parts:
        tokenizer.add_tokens([tokenizers.AddedToken("a dog", normalized=False)])
    if "added word" in parts:
        tokenizer.add_tokens([tokenizers.AddedToken("zz", normalized=False)])
    if "added and normalized" in parts:
        tokenizer.add_tokens([tokenizers.AddedToken("<dog>", normalized=True)])
    return tokenizer


@pytest.mark.parametrize(
    "part", ["model", "normalizer", "pre_tokenizer", "clean_text", "added", "added word", "added and normalized"]
)
def test_with_another_tokenizer_texts_stay_whole(part: str) -> None:
    text = "the dog " * 10_000
    assert len(LongTexts(bert_tokenizer(4), 4).beginning(text)) < 100
    assert LongTexts(tokenizer_without(part), 4).beginning(text) is text


def test_words_of_any_length_stay_whole() -> None:
    text = "the dog " * 10_000
    assert LongTexts(bert_tokenizer(4, longest_word=10**9), 4).beginning(text) is text


def test_usual_texts_are_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    long_texts = LongTexts(bert_tokenizer(256), 256)
    monkeypatch.setattr(long_texts, "_has_enough", None)
    text = "a" * 64 * 256
    assert long_texts.beginning(text) is text
