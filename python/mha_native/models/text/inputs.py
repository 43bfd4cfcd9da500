"""Check texts and tokens, the inputs of models."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...functions.messages import listed, name_of_type, shown


def checked_texts(function: str, texts: Any) -> Iterable[Any]:
    """Return `texts`; TypeError unless they are an ordered iterable."""
    is_one = isinstance(texts, (str, bytes, bytearray, memoryview)) or getattr(texts, "ndim", 1) != 1
    if is_one or isinstance(texts, (Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        what = "a str, or texts" if function.endswith(".encode") else "texts"
        raise TypeError(
            f"{function}: texts must be {what} in an order, such as a list of str; got {name_of_type(texts)}"
        )
    return texts


def check_text(what: str, text: Any, index: int) -> None:
    """Raise TypeError unless `text` is a str, and ValueError if it holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str; got {name_of_type(text)} at {index}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what}: text {index} holds half of a surrogate pair, {text[error.start]!r}, at character {error.start}"
        ) from None


def checked_each(what: str, texts: Iterable[Any]) -> Iterator[str]:
    """Yield texts, and raise the errors of `check_text` at a wrong one."""
    for i, text in enumerate(texts):
        check_text(what, text, i)
        yield text


def text_or_pair(what: str, given: Any, index: int) -> str | tuple[str, str]:
    """Return a text, or a pair of texts from a list, a tuple, or a dict with text and text_pair."""
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
    """Return the tokens of all texts; TypeError or ValueError if they are not lists of integers."""
    if not isinstance(sequences, Iterable):
        raise TypeError(f"{what} must be a sequence of them; got {name_of_type(sequences)}")
    return [checked_tokens(what, sequence, i) for i, sequence in enumerate(sequences)]


def prompts_in(what: str, given: Any) -> tuple[bool, list[str | list[int]]]:
    """Return whether a single text (or its tokens [T]) was given, and the list of texts and checked tokens."""
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
    """Return whether `given` is the tokens of one text: numbers [T], in an array or a list."""
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
    """Raise ValueError if one of `tokens`, of the text at `index`, is outside the vocabulary."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        where = "" if index is None else f" at {index}"
        raise ValueError(
            f"{what}: tokens must be from 0 to {vocab_size - 1}; got {min(tokens)} to {max(tokens)}{where}"
        )


def checked_tokens(what: str, sequence: ArrayLike, index: int) -> list[int]:
    """Return the tokens of the text at `index`; TypeError or ValueError if they are not integers [T]."""
    try:
        tokens = np.asarray(sequence)
    except Exception as error:  # rows of different lengths, or an error of the object
        raise TypeError(f"{what} must hold integers [T]; got {shown(sequence)} at {index}") from error
    if tokens.ndim != 1:
        raise ValueError(f"{what}: the tokens of a text must have one axis; got {tokens.shape} at {index}")
    if tokens.size == 0:
        return []
    # Integers of more than 64 bits are objects to NumPy. A long array of another dtype is not converted to a list.
    are_objects = tokens.dtype.kind == "O"
    if tokens.dtype.kind not in "iu" and not (are_objects and all(type(token) is int for token in tokens)):
        raise TypeError(f"{what}: tokens must be integers; got {listed([str(tokens.dtype)])} at {index}")
    if max(int(tokens.max()), -int(tokens.min())) >= 2**63:
        raise ValueError(f"{what}: tokens must be integers of at most 63 bits; got larger ones at {index}")
    ids: list[int] = tokens.tolist()
    return ids
