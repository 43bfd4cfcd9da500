"""The tokenizer of a model, for callers that split texts by tokens."""

from collections.abc import Iterable
from typing import Any

from ..functions.messages import shown


class TextTokenizer:
    """A ``tokenizers.Tokenizer``, `library`, with the method names of transformers. It does not cut texts."""

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
        """Tokenize a text. `truncation` must be False, None or "do_not_truncate"; `max_length` has no effect."""
        if truncation not in (None, False, "do_not_truncate"):
            raise ValueError(f"TextTokenizer.encode: truncation must be False; got {shown(truncation)}")
        ids: list[int] = self._library.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text as strings, without special tokens."""
        tokens: list[str] = self._library.encode(text, add_special_tokens=False).tokens
        return tokens

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""
        text: str = self._library.decode([int(token) for token in token_ids], skip_special_tokens=skip_special_tokens)
        return text

    def __len__(self) -> int:
        """Return the number of tokens in the vocabulary, including added tokens."""
        size: int = self._library.get_vocab_size()
        return size
