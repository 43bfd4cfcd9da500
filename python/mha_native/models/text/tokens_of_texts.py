"""The tokens of texts with their places, and their number, of every model that reads texts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _core
from ...functions.messages import in_the_name_of
from .batching import slabs
from .inputs import check_text, checked_texts, text_or_pair
from .tokenizer import NoTokenizer


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
        return self._read_texts("tokens_of", texts, add_special_tokens)

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
        return self._read_texts("count_tokens", texts, add_special_tokens)

    def _reader(self) -> tuple[Any, bool]:
        """Return the `Tokenizer` of texts, and whether it reads pairs."""
        raise NotImplementedError

    def _before(self, function: str, prompt_name: str | None, prompt: str | None) -> str:
        """Return the text before each text; models without prompts have none."""
        return ""

    def _read_texts(
        self, method: str, texts: Any, special: bool, prompt_name: str | None = None, prompt: str | None = None
    ) -> Any:
        """Return the result of a public method: tokens, or their numbers."""
        function, counts = f"{type(self).__name__}.{method}", method == "count_tokens"
        before = self._before(function, prompt_name, prompt)
        special, tokenizer = _core.boolean(function, "add_special_tokens", special), self._reader()[0]
        found: list[Any] = []
        for slab in self._slabs(function, texts, before):
            with in_the_name_of(function):
                found += tokenizer.counts(slab, special) if counts else tokenizer.tokenized(slab, special)
        if isinstance(texts, (str, dict)):
            return found[0]
        return np.array(found, np.int64) if counts else found

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
