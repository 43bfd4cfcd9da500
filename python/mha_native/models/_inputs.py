"""What callers give to be embedded: texts, or tokens."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def checked_texts(function: str, texts: Any) -> Iterable[Any]:
    """`texts`, or TypeError unless they can be read one by one, in an order."""
    is_one = isinstance(texts, (str, bytes, bytearray, memoryview)) or getattr(texts, "ndim", 1) != 1
    if is_one or isinstance(texts, (Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        what = "a str, or texts" if function.endswith(".encode") else "texts"
        raise TypeError(
            f"{function}: texts must be {what} in an order, such as a list of str; got {type(texts).__name__}"
        )
    return texts


def check_text(text: Any, index: int) -> None:
    """TypeError for what is no str; ValueError for one that holds what is no character."""
    if not isinstance(text, str):
        raise TypeError(f"SentenceEncoder: texts must be str; got {type(text).__name__} at {index}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"SentenceEncoder: text {index} holds half of a surrogate pair, {text[error.start]!r}, "
            f"at character {error.start}"
        ) from None


def checked_tokens(sequence: ArrayLike, index: int) -> list[int]:
    """The tokens of a text, or TypeError or ValueError."""
    tokens = np.asarray(sequence)
    if tokens.ndim != 1:
        raise ValueError(f"SentenceEncoder: the tokens of a text must have one axis; got {tokens.shape} at {index}")
    ids: list[int] = tokens.tolist()
    # Integers of more than 64 bits are objects to NumPy.
    if ids and not np.issubdtype(tokens.dtype, np.integer) and not all(type(token) is int for token in ids):
        raise TypeError(f"SentenceEncoder: tokens must be integers; got {tokens.dtype} at {index}")
    if ids and max(max(ids), -min(ids)) >= 2**63:
        raise ValueError(f"SentenceEncoder: tokens must be integers of at most 63 bits; got larger ones at {index}")
    return ids
