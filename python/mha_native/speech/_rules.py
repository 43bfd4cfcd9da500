"""The tokens that Whisper may write next: logits of the others become minus infinity."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..models.generation.beam_search import would_repeat
from ..models.generation.sampling import penalized

Logits = NDArray[np.float32]


class TokenRules(NamedTuple):
    """The rules of the text of a window.

    Parameters
    ----------
    end : int
        The token that ends the text. Tokens below it are text, tokens above it are special ones and timestamps.
    first_timestamp : int
        The token of the time 0. All tokens from it on are timestamps.
    has_timestamps : bool
        Whether the text has timestamps: at its begin, unless it has a prefix, and in pairs between segments, which
        never go back.
    last_initial : int
        The last token that the first timestamp may be.
    suppressed : int64 [n]
        Tokens that are never written.
    suppressed_first : int64 [n]
        Tokens that are not the first one.
    repetition_penalty : float
        Divides the positive logits of tokens that are written already, and multiplies the negative ones.
    no_repeat_ngram_size : int
        A run of so many tokens is written once at most. 0: no limit.
    """

    end: int
    first_timestamp: int
    has_timestamps: bool
    last_initial: int
    suppressed: NDArray[np.int64]
    suppressed_first: NDArray[np.int64]
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    def apply(self, logits: Logits, written: NDArray[np.int64], num_prefix: int) -> None:
        """Change logits [n, V] of the tokens after texts [n, t], whose first `num_prefix` tokens were given."""
        free = written[:, num_prefix:]
        if self.repetition_penalty != 1 and written.size:
            penalty = np.float32(self.repetition_penalty)
            found = np.take_along_axis(logits, written, 1)
            np.put_along_axis(logits, written, penalized(found, penalty), 1)
        if self.no_repeat_ngram_size:
            for row, text in zip(logits, written, strict=True):
                row[would_repeat(text, self.no_repeat_ngram_size)] = -np.inf
        logits[:, self.suppressed] = -np.inf
        if not free.shape[1]:
            logits[:, self.suppressed_first] = -np.inf
        if self.has_timestamps:
            self._time(logits, free, num_prefix > 0)

    def _time(self, logits: Logits, free: NDArray[np.int64], has_prefix: bool) -> None:
        """Apply the rules of timestamps."""
        first = self.first_timestamp
        logits[:, first - 1] = -np.inf  # the token that announces a text without timestamps
        if not free.shape[1]:
            if not has_prefix:
                logits[:, :first] = -np.inf
                logits[:, self.last_initial + 1 :] = -np.inf
            return
        may_be_time = []  # rows in which both text and a timestamp may follow
        for i, tokens in enumerate(free.tolist()):
            row, last = logits[i], tokens[-1]
            if last < first:  # a timestamp after text is later than the one before the text
                latest = next((token for token in reversed(tokens) if token >= first), first - 1)
                row[first : latest + 1] = -np.inf
            elif len(tokens) == 1 or tokens[-2] >= first:
                row[first:] = -np.inf  # text follows a pair, and the first timestamp
                continue
            else:  # a pair is completed, unless the text ends
                row[: self.end] = -np.inf
                row[first:last] = -np.inf
            may_be_time.append(i)
        if may_be_time:
            rows = np.array(may_be_time)
            highest = logits[rows, :first].max(1)
            times = logits[rows, first:]
            with np.errstate(divide="ignore", invalid="ignore"):  # text or timestamps may be impossible
                is_time = np.log(np.exp(times - highest[:, None]).sum(1)) > 0
            logits[rows[is_time], :first] = -np.inf
