"""The prompt before the text of a window, with a tokenizer whose tokens are words."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from tiny_whisper import MAX_LENGTH, WORDS, tokenizer

from mha_native.models.text.tokenizer import Tokenizer
from mha_native.speech._prompt import SpeechTokens


def speech_tokens(leave_out: str = "") -> SpeechTokens:
    return SpeechTokens(Tokenizer(tokenizer(leave_out)), MAX_LENGTH)


TOKENS = speech_tokens()
START, EN, TASK = TOKENS.start, TOKENS.languages["en"], TOKENS.tasks["transcribe"]
RED, BLUE, GREEN = range(3)


def test_the_special_tokens_are_found_by_name() -> None:
    assert TOKENS.languages == {"en": START + 1, "de": START + 2}
    assert TOKENS.first_timestamp == TOKENS.no_timestamps + 1
    with pytest.raises(ValueError, match=r"no token <\|startofprev\|>"):
        speech_tokens("startofprev")
    with pytest.raises(ValueError, match="language must be a code of the model"):
        TOKENS.language("f", "fr")


def test_a_prompt_has_previous_text_the_task_and_the_prefix() -> None:
    assert TOKENS.prompt([])[:3] == ([START], 0, 0)
    assert TOKENS.prompt([EN, TASK], without_timestamps=True).tokens == [START, EN, TASK, TOKENS.no_timestamps]
    assert TOKENS.prompt([EN, TASK], [RED, RED])[:3] == ([TOKENS.previous, RED, RED, START, EN, TASK], 3, 0)
    hints = TOKENS.prompt([], [RED], hotwords=" blue green ")
    assert hints.tokens == [TOKENS.previous, BLUE, GREEN, RED, START]
    begun = TOKENS.prompt([], [RED], prefix="blue", hotwords="green")
    assert begun[:3] == ([TOKENS.previous, RED, START, TOKENS.first_timestamp, BLUE], 2, 2)
    assert TOKENS.prompt([], prefix="blue", without_timestamps=True).tokens[1:] == [TOKENS.no_timestamps, BLUE]


def test_long_parts_of_a_prompt_are_cut_and_leave_room() -> None:
    assert TOKENS.prompt([], [RED] * 5 + [BLUE] * 11).tokens == [TOKENS.previous, *[BLUE] * 11, START]
    assert TOKENS.prompt([], hotwords="red " * 20).tokens == [TOKENS.previous, *[RED] * 11, START]
    assert len(TOKENS.prompt([EN, TASK], [RED] * 20, hotwords="blue " * 20, room=3).tokens) == 21
    assert TOKENS.prompt([], [RED] * 20, room=22).tokens == [START]
    assert TOKENS.prompt([], prefix="red " * 20).tokens == [START, TOKENS.first_timestamp, *[RED] * 11]


def test_suppressed_tokens_have_special_ones_with_them() -> None:
    special = {*TOKENS.tasks.values(), START, TOKENS.previous, TOKENS.language_model, TOKENS.no_speech}
    assert TOKENS.suppressed(None) == TOKENS.suppressed([]) == ()
    assert set(TOKENS.suppressed([RED])) == special | {RED}
    assert WORDS.index("▁(") in TOKENS.suppressed([-1])
    assert -1 not in TOKENS.suppressed([-1])
