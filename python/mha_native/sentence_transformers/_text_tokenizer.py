"""The tokenizer of a model for callers that split texts by their tokens."""

from collections.abc import Iterable
from typing import Any

from ..functions.messages import shown


class TextTokenizer:
    """Tokens of texts and texts of tokens, by names of transformers. No text is cut.

    Parameters
    ----------
    library : tokenizers.Tokenizer
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        truncation: bool | str | None = None,
        max_length: int | None = None,
    ) -> list[int]:
        """The tokens of a text. `truncation` must be False, None or "do_not_truncate", so that `max_length` has no
        effect."""
        if truncation not in (None, False, "do_not_truncate"):
            raise ValueError(f"TextTokenizer.encode: truncation must be False; got {shown(truncation)}")
        ids: list[int] = self._library.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text as the tokenizer writes them, without special ones."""
        tokens: list[str] = self._library.encode(text, add_special_tokens=False).tokens
        return tokens

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens, as far as they still say it."""
        text: str = self._library.decode([int(token) for token in token_ids], skip_special_tokens=skip_special_tokens)
        return text

    def __len__(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        size: int = self._library.get_vocab_size()
        return size
