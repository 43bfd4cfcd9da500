"""Group the tokens of a text into entities by their scores, as transformers does."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STRATEGIES = ("none", "simple", "first", "average", "max")

Entity = dict[str, Any]
Join = Callable[[list[str]], str]  # words of tokens, as the tokenizer writes them, to their text


class Piece(NamedTuple):
    """A token of a text."""

    word: str  # as the tokenizer writes it
    start: int  # position in the text, in characters
    end: int
    place: int  # counted from 0, special tokens before it included
    continues: bool  # whether it continues the word of the token before it


class _Tagged(NamedTuple):
    label: str
    score: float
    word: str
    start: int
    end: int


def entities_of(
    pieces: Sequence[Piece], scores: NDArray[np.float32], labels: Sequence[str], strategy: str, join: Join
) -> list[Entity]:
    """Return the entities among tokens with the scores [T, L], in order; with "none" each token is an entity.

    A label with the prefix ``B-`` begins an entity. A label with ``I-``, or without prefix, continues an entity of its
    kind. "simple" takes the label of each token. The other strategies take one label for each word: the label of its
    first token ("first"), of the largest score in it ("max"), or of the average of its scores ("average").
    """
    if strategy == "none":
        best = scores.argmax(axis=1)
        return [
            {
                "entity": labels[k],
                "score": float(row[k]),
                "index": piece.place,
                "word": piece.word,
                "start": piece.start,
                "end": piece.end,
            }
            for piece, row, k in zip(pieces, scores, best, strict=True)
        ]
    words = _whole_words(pieces) if strategy != "simple" else [range(i, i + 1) for i in range(len(pieces))]
    tagged = [
        _tagged([pieces[i] for i in word], scores[word.start : word.stop], labels, strategy, join) for word in words
    ]
    groups: list[list[_Tagged]] = []
    for item in tagged:
        kind, begins = _kind_of(item.label)
        if groups and not begins and _kind_of(groups[-1][-1].label)[0] == kind:
            groups[-1].append(item)
        else:
            groups.append([item])
    return [
        {
            "entity_group": group[0].label.split("-", 1)[-1],
            "score": float(np.mean([item.score for item in group])),
            "word": join([item.word for item in group]),
            "start": group[0].start,
            "end": group[-1].end,
        }
        for group in groups
    ]


def without_overlaps(entities: Iterable[Entity]) -> list[Entity]:
    """Leave out entities that overlap a longer one, or one of the same length with a higher score."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: int(entity["start"])):
        if kept and kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            if _rank(entity) > _rank(kept[-1]):
                kept[-1] = entity
        else:
            kept.append(entity)
    return kept


def _rank(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _whole_words(pieces: Sequence[Piece]) -> list[range]:
    """Return the tokens of each word."""
    firsts = [i for i, piece in enumerate(pieces) if i == 0 or not piece.continues]
    return [range(a, b) for a, b in pairwise([*firsts, len(pieces)])]


def _tagged(
    pieces: list[Piece], scores: NDArray[np.float32], labels: Sequence[str], strategy: str, join: Join
) -> _Tagged:
    """Return the label of a word from the scores of its tokens, one row each; "simple" has single tokens."""
    if strategy == "average":
        row = scores.mean(axis=0)
    else:
        row = scores[scores.max(axis=1).argmax() if strategy == "max" else 0]
    best = int(row.argmax())
    word = pieces[0].word if strategy == "simple" else join([piece.word for piece in pieces])
    return _Tagged(labels[best], float(row[best]), word, pieces[0].start, pieces[-1].end)


def _kind_of(label: str) -> tuple[str, bool]:
    """Return the kind of entity, and whether the label begins one."""
    return label[2:] if label.startswith(("B-", "I-")) else label, label.startswith("B-")
