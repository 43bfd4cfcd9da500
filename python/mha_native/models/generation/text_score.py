"""The likelihood of a text by a language model."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TextScore(NamedTuple):
    """The likelihood of a text by a language model.

    Parameters
    ----------
    tokens : int64 [T]
        Tokens of the text, special ones included.
    log_likelihoods : float64 [T - 1]
        The logarithm of the probability of each token but the first, given the tokens before it.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import TextScore
    >>> score = TextScore(np.array([1, 7, 4]), np.log([0.5, 0.125]))
    >>> round(score.total, 4), round(score.perplexity, 4)
    (-2.7726, 4.0)
    """

    tokens: NDArray[np.int64]
    log_likelihoods: NDArray[np.float64]

    @property
    def total(self) -> float:
        """The sum of `log_likelihoods`."""
        return float(self.log_likelihoods.sum())

    @property
    def perplexity(self) -> float:
        """``exp(-mean(log_likelihoods))``; NaN for a text of a single token."""
        return float(np.exp(-self.log_likelihoods.mean())) if len(self.log_likelihoods) else float("nan")
