"""What callers give to be embedded: texts, or tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...functions.messages import listed, name_of_type, shown


def checked_texts(function: str, texts: Any) -> Iterable[Any]:
    """`texts`, or TypeError unless they can be read one by one, in an order."""
    is_one = isinstance(texts, (str, bytes, bytearray, memoryview)) or getattr(texts, "ndim", 1) != 1
    if is_one or isinstance(texts, (Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        what = "a str, or texts" if function.endswith(".encode") else "texts"
        raise TypeError(
            f"{function}: texts must be {what} in an order, such as a list of str; got {name_of_type(texts)}"
        )
    return texts


def check_text(what: str, text: Any, index: int) -> None:
    """TypeError for what is no str; ValueError for one that holds what is no character."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str; got {name_of_type(text)} at {index}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what}: text {index} holds half of a surrogate pair, {text[error.start]!r}, at character {error.start}"
        ) from None


def text_or_pair(what: str, given: Any, index: int) -> str | tuple[str, str]:
    """A text; or two that are read as one: from a list or tuple of them, or from a dict with text and text_pair."""
    parts = [given]
    if isinstance(given, Mapping):
        if not {"text"} <= given.keys() <= {"text", "text_pair"}:
            raise ValueError(
                f"{what}: a dict must have text and perhaps text_pair; got {shown(list(given))} at {index}"
            )
        parts = [given[name] for name in ("text", "text_pair") if given.get(name) is not None]
    elif isinstance(given, (list, tuple)):
        parts = list(given)
        if len(parts) != 2:
            raise ValueError(f"{what}: a pair must have two texts; got {len(parts)} at {index}")
    for part in parts:
        check_text(what, part, index)
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def checked_sequences(what: str, sequences: Any) -> list[list[int]]:
    """The tokens of all texts, or TypeError or ValueError."""
    if not isinstance(sequences, Iterable):
        raise TypeError(f"{what} must be a sequence of them; got {name_of_type(sequences)}")
    return [checked_tokens(what, sequence, i) for i, sequence in enumerate(sequences)]


def prompts_in(what: str, given: Any) -> tuple[bool, list[str | list[int]]]:
    """Whether there is but one text, or tokens [T] of one; and what there is, texts as they are and tokens checked."""
    is_one = isinstance(given, str) or _is_tokens(given)
    is_list = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    if not is_one and (isinstance(given, (bytes, Mapping, set, frozenset)) or not is_list):
        raise TypeError(f"{what} must be a text, tokens [T], or a list of such; got {name_of_type(given)}")
    prompts: list[str | list[int]] = []
    for i, one in enumerate([given] if is_one else given):
        if not isinstance(one, (str, list, tuple)) and not hasattr(one, "ndim"):
            raise TypeError(f"{what} must be texts, or tokens [T]; got {name_of_type(one)} at {i}")
        prompts.append(one if isinstance(one, str) else checked_tokens(what, one, i))
    return is_one, prompts


def _is_tokens(given: Any) -> bool:
    """Whether this is the tokens of one text: numbers [T], in an array or a list."""
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(each, (int, np.integer)) for each in given)
    return getattr(given, "ndim", None) == 1 and getattr(getattr(given, "dtype", None), "kind", "O") != "O"


def check_sequences(what: str, sequences: Sequence[list[int]], vocab_size: int, max_length: int | None) -> None:
    """ValueError unless each of `sequences` has from 1 to `max_length` tokens, all of them from 0 to below
    `vocab_size`."""
    for i, sequence in enumerate(sequences):
        if not sequence:
            raise ValueError(f"{what} must have a token; got none at {i}")
        if max_length is not None and len(sequence) > max_length:
            raise ValueError(
                f"{what} must have no more tokens than the model has positions, {max_length}; "
                f"got {len(sequence)} at {i}"
            )
        check_vocabulary(what, sequence, vocab_size, i)


def check_vocabulary(what: str, tokens: Sequence[int], vocab_size: int, index: int | None = None) -> None:
    """ValueError if one of `tokens`, those of the text at `index` if there are several, is none of the model."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        where = "" if index is None else f" at {index}"
        raise ValueError(
            f"{what}: tokens must be from 0 to {vocab_size - 1}; got {min(tokens)} to {max(tokens)}{where}"
        )


def checked_tokens(what: str, sequence: ArrayLike, index: int) -> list[int]:
    """The tokens of the text at `index`, or TypeError or ValueError."""
    try:
        tokens = np.asarray(sequence)
    except Exception as error:  # rows of different length, or whatever the object raises
        raise TypeError(f"{what} must hold integers [T]; got {shown(sequence)} at {index}") from error
    if tokens.ndim != 1:
        raise ValueError(f"{what}: the tokens of a text must have one axis; got {tokens.shape} at {index}")
    if tokens.size == 0:
        return []
    # Integers of more than 64 bits are objects to NumPy. A long array of another dtype is not made a list of.
    are_objects = tokens.dtype.kind == "O"
    if tokens.dtype.kind not in "iu" and not (are_objects and all(type(token) is int for token in tokens)):
        raise TypeError(f"{what}: tokens must be integers; got {listed([str(tokens.dtype)])} at {index}")
    if max(int(tokens.max()), -int(tokens.min())) >= 2**63:
        raise ValueError(f"{what}: tokens must be integers of at most 63 bits; got larger ones at {index}")
    ids: list[int] = tokens.tolist()
    return ids
