"""Texts in which tokenizers come apart: scripts, spaces, ends of lines, digits, signs, and tokens of their own."""

from __future__ import annotations

import random

CHOSEN = [
    "", " ", "  ", "\n", "\n\n\n", "\t \t", "a", " a", "a ", "The capital of France is", "  Hello\n\n\tworld ",
    "don't I'LL we've 'S", "日本語 テスト 한국어 العربية עברית", "é ñ ß ﬁ Ǆ", "\x00\x01\x7f\u200b\ufeff\u2028",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "½ ² ٣ Ⅷ 12345 1.234,5", "x" * 300,
    "a.b...c!!!???", "\r\n\r\n a\r", "a_b-c/d\\e", "<0x0A> \u2581 Ġ Ċ", "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>a<|im_end|> <|bos|><s></s>[INST]", "x\u00a0y\u3000z", "def f(x):\n    return x\n",
    "$5 + 3% = #1 @x & ^ ~ `q`",
]  # fmt: skip

_PARTS = [
    " ", "  ", "\n", "\t", "a", "The", "cat", "X", "9", "12", "'s", "'LL", ".", "...", "!", "_", "é", "中", "ї",
    "\U0001f600", "\u00a0", "\u0301", "\x00", "<|endoftext|>", "<|im_end|>", "</s>", "\u2581",
]  # fmt: skip

_SCRIPTS = [(0x20, 0x800), (0x800, 0xD800), (0xE000, 0x20000)]  # all that are no surrogates


def texts(count: int, seed: int = 0) -> list[str]:
    """The chosen ones, and random ones of parts and of characters of all scripts."""
    rng = random.Random(seed)

    def part() -> str:
        return rng.choice(_PARTS) if rng.random() < 0.8 else chr(rng.randrange(*rng.choice(_SCRIPTS)))

    return CHOSEN + ["".join(part() for _ in range(rng.randint(1, 12))) for _ in range(count)]
