"""The tokens of texts with their places, and their number, of every model that reads texts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _core
from ...functions.messages import in_the_name_of
from .batching import slabs
from .inputs import check_text, checked_texts, text_or_pair
from .tokenizer import NoTokenizer, TokenizedText


class ReadsTexts:
    """A model that reads texts, by the tokenizer that `_reader` returns."""

    def tokens_of(self, texts: Any, *, add_special_tokens: bool = True) -> Any:
        """Return the tokens of texts with their places.

        Parameters
        ----------
        texts : str, or N of them
            As the model reads them, cut to `max_length` tokens if it cuts texts. Models of pairs also take a dict with
            ``text`` and ``text_pair``, and, in a list, tuples of two texts.
        add_special_tokens : bool, default True
            Add the tokens that begin, end and separate texts.

        Returns
        -------
        tokens : TokenizedText
            For several texts a list of N.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text.
        """
        return self._tokens_of(f"{type(self).__name__}.tokens_of", texts, "", add_special_tokens)

    def count_tokens(self, texts: Any, *, add_special_tokens: bool = True) -> Any:
        """Return the number of tokens of texts, which is the cost of a call for them.

        Parameters
        ----------
        texts, add_special_tokens
            As for `tokens_of`.

        Returns
        -------
        counts : int64 [N]
            For one text an int.
        """
        return self._count_tokens(f"{type(self).__name__}.count_tokens", texts, "", add_special_tokens)

    def _reader(self) -> tuple[Any, bool]:
        """Return the `Tokenizer` of texts, and whether it reads pairs."""
        raise NotImplementedError

    def _tokens_of(self, function: str, texts: Any, prompt: str, special: bool) -> Any:
        special, tokenizer = _core.boolean(function, "add_special_tokens", special), self._reader()[0]
        found: list[TokenizedText] = []
        for slab in self._slabs(function, texts, prompt):
            with in_the_name_of(function):
                found += tokenizer.tokenized(slab, special)
        return found[0] if isinstance(texts, (str, dict)) else found

    def _count_tokens(self, function: str, texts: Any, prompt: str, special: bool) -> Any:
        special, tokenizer = _core.boolean(function, "add_special_tokens", special), self._reader()[0]
        counts: list[int] = []
        for slab in self._slabs(function, texts, prompt):
            with in_the_name_of(function):
                counts += tokenizer.counts(slab, special)
        return counts[0] if isinstance(texts, (str, dict)) else np.array(counts, np.int64)

    def _slabs(self, function: str, texts: Any, prompt: str) -> Iterator[list[Any]]:
        """Yield the checked texts and pairs, some at a time, each after the prompt."""
        tokenizer, reads_pairs = self._reader()
        what = f"{function}: texts"
        if isinstance(tokenizer, NoTokenizer):
            tokenizer.refuse(what)
        is_one = isinstance(texts, (str, dict) if reads_pairs else str)

        def checked() -> Iterator[Any]:
            for i, text in enumerate([texts] if is_one else checked_texts(function, texts)):
                if not reads_pairs:
                    check_text(what, text, i)
                    yield prompt + text
                elif isinstance(one := text_or_pair(what, text, i), str):
                    yield prompt + one
                else:
                    yield prompt + one[0], one[1]

        return slabs(checked())
