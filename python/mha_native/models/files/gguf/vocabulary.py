"""The tokens of a GGUF file, their kinds and merges."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....functions.messages import shown
from .file import GGUFFile

# Kinds of tokens, by their numbers in tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED, _LAST_KIND = 2, 3, 4, 6


class Vocabulary:
    """Tokens by their numbers, checked.

    `special` are control tokens, such as the end of a text, and the unknown token. `whole` are other tokens that are
    found in texts before texts are split.

    Raises ValueError if there are no tokens, if two tokens are equal, or if an array does not have one value for each
    token.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.tokens: list[str] = self._strings("tokens")
        self.numbers = {token: number for number, token in enumerate(self.tokens)}
        if len(self.numbers) < len(self.tokens):
            again = next(token for number, token in enumerate(self.tokens) if self.numbers[token] != number)
            raise ValueError(f"{file.path}: tokenizer.ggml.tokens must differ; got {shown(again)} more than once")
        kinds = self._array("token_type", np.integer) if self._has("token_type") else np.ones(len(self.tokens), int)
        if kinds.min() < 1 or kinds.max() > _LAST_KIND:
            raise ValueError(
                f"{file.path}: tokenizer.ggml.token_type must be of 1 to {_LAST_KIND}; "
                f"got {kinds.min()} to {kinds.max()}"
            )
        self.special = [self.tokens[i] for i in np.flatnonzero((kinds == _UNKNOWN) | (kinds == _CONTROL))]
        self.whole = [self.tokens[i] for i in np.flatnonzero(kinds == _USER_DEFINED)]

    def scores(self) -> NDArray[Any]:
        """Return the score of each token. Merges with larger scores come first."""
        scores = self._array("scores", np.floating)
        if np.isnan(scores).any():
            raise ValueError(f"{self._file.path}: tokenizer.ggml.scores must be numbers; got nan")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """Return pairs of tokens that are merged, in the order of merges."""
        pairs = []
        for merge in self._strings("merges"):
            left, space, right = merge.partition(" ")
            if not (left and space and right) or " " in right:
                raise ValueError(
                    f"{self._file.path}: tokenizer.ggml.merges must be two tokens and a space; got {shown(merge)}"
                )
            pairs.append((left, right))
        return pairs

    def _has(self, name: str) -> bool:
        return f"tokenizer.ggml.{name}" in self._file.metadata

    def _strings(self, name: str) -> list[str]:
        values = self._file.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"{self._file.path}: tokenizer.ggml.{name} must be an array of texts; got {shown(values)}")
        return values

    def _array(self, name: str, kind: type) -> NDArray[Any]:
        values = self._file.metadata.get(f"tokenizer.ggml.{name}")
        count = len(self.tokens)
        if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, kind) or len(values) != count:
            raise ValueError(
                f"{self._file.path}: tokenizer.ggml.{name} must be an array of {count} numbers, one for each token; "
                f"got {shown(values)}"
            )
        return values
