"""The tokenizer of a model that writes texts: texts to tokens, and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...functions.messages import in_the_name_of
from .inputs import check_sequences, check_text, prompts_in
from .tokenizer import library_errors


class LanguageTokenizer:
    """A tokenizer for texts of any length.

    Parameters
    ----------
    library : tokenizers.Tokenizer
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def check_vocabulary(self, path: Path, vocab_size: int) -> None:
        """Raise ValueError if the tokenizer has more tokens than the model at `path`."""
        num_tokens = self._library.get_vocab_size()
        if num_tokens > vocab_size:
            raise ValueError(f"{path}: the tokenizer has {num_tokens} tokens, more than vocab_size, {vocab_size}")

    def encode(self, what: str, text: Any, index: int, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, with the ones that begin or end each text if `special`."""
        check_text(what, text, index)
        with library_errors("the tokenizer failed"):
            ids: list[int] = self._library.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with library_errors("the tokenizer failed"):
            return str(self._library.decode(tokens, skip_special_tokens=True))


class NoTokenizer:
    """Fallback for a model without a supported tokenizer, which takes tokens only.

    Parameters
    ----------
    instead : tuple of str
        Names of the unsupported files of a tokenizer.
    """

    def __init__(self, instead: Sequence[str]) -> None:
        self._instead = " or ".join(instead)

    def encode(self, what: str, text: Any, index: int, *, special: bool = True) -> list[int]:
        """Raise ValueError."""
        raise ValueError(
            f"{what} need a tokenizer.json, which the model does not have, and {self._instead} is not read; "
            "generate_tokens takes tokens"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Raise ValueError."""
        raise ValueError(f"tokens need a tokenizer.json to become text; got {len(tokens)} of them")


def read_prompts(
    tokenizer: LanguageTokenizer | NoTokenizer,
    function: str,
    argument: str,
    given: Any,
    vocab_size: int,
    max_length: int | None,
    special: bool = True,
) -> tuple[bool, list[list[int]]]:
    """Return whether an argument is a single prompt, and the tokens of each prompt.

    Texts get `special` tokens or not. Each prompt must have from 1 to `max_length` tokens, all of them below
    `vocab_size`; messages name the `argument` of the `function`.
    """
    what = f"{function}: {argument}"
    is_one, prompts = prompts_in(what, given)
    with in_the_name_of(function):
        sequences = [
            tokenizer.encode(what, prompt, i, special=special) if isinstance(prompt, str) else prompt
            for i, prompt in enumerate(prompts)
        ]
    check_sequences(what, sequences, vocab_size, max_length)
    return is_one, sequences
