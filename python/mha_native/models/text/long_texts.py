"""Cut a long text before it is tokenized, when only its first tokens count.

The tokenizers library tokenizes a whole text, in about 100 bytes of memory for each byte of text, and cuts the tokens
afterwards.
"""

import re
from typing import Any

# A text is long if it has more characters than this for each token that counts. English has 4 or 5 for each token.
_LONG = 64

# Characters for each token that counts in the first beginning to try, and the factor to the next one.
_FIRST_TRY, _NEXT_TRY = 16, 4

# Long words are shortened only if the tokenizer looks up words of at most this length; BERT looks up 100 characters.
_LONGEST_WORD = 10_000


class LongTexts:
    """Beginnings of long texts with the same first `max_tokens` tokens.

    Exact for the tokenizer of BERT: a text is split at blanks and around punctuation, and the tokens of a word depend
    on that word alone (WordPiece). So a beginning has the tokens of the whole text, except at its end: the last word
    can continue, and an added token such as [MASK] can begin there. With another tokenizer texts stay whole.
    """

    def __init__(self, library: Any, max_tokens: int) -> None:
        self._library = library
        self.max_tokens = max_tokens
        self._applies, self._surplus, self._added_length = False, re.compile(""), 0
        if not _is_of_bert(library):
            return
        longest_word = library.model.max_input_chars_per_word  # a longer word becomes the unknown token
        added = [token.content for token in library.get_added_tokens_decoder().values()]
        self._added_length = max(map(len, added), default=0)
        self._applies = max(longest_word, self._added_length) <= _LONGEST_WORD
        if self._applies:
            longer = max(longest_word, self._added_length) + 1
            # One blank has the effect of many; so has one of the characters that the tokenizer leaves out.
            self._surplus = re.compile(
                rf"([ \t\n\r])[ \t\n\r]+|([\0\ufffd])[\0\ufffd]+|([A-Za-z0-9]{{{longer}}})[A-Za-z0-9]+"
            )

    def beginning(self, text: str) -> str:
        """Return `text` if it is not long; else a beginning, or the text without characters that change no token."""
        if not self._is_long(text):
            return text
        length = _FIRST_TRY * self.max_tokens
        if not self._has_enough(text[:length]):
            text = self._surplus.sub(r"\1\2\3", text)
        while length < len(text) and not self._has_enough(text[:length]):
            length *= _NEXT_TRY
        return text[:length]

    def beginnings(self, first: str, second: str) -> tuple[str, str]:
        """Return beginnings of the two texts of a pair, for the library to cut.

        The library cuts the text with more tokens, so only one text is shortened, and only if the other one has few
        tokens, as with a passage and a question.
        """
        if self._is_long(second) and self._has_few(first):
            return first, self.beginning(second)
        if self._is_long(first) and self._has_few(second):
            return self.beginning(first), second
        return first, second

    def _is_long(self, text: str) -> bool:
        return self._applies and len(text) > _LONG * self.max_tokens

    def _has_few(self, text: str) -> bool:
        """Return whether `text` has fewer than `max_tokens` tokens. A long text has more."""
        if self._is_long(text):
            return False
        return len(self._library.encode(text, add_special_tokens=False)) < self.max_tokens

    def _has_enough(self, beginning: str) -> bool:
        """Return whether each text with this `beginning` has the same first `max_tokens` tokens."""
        encoding = self._library.encode(beginning, add_special_tokens=False)
        parts = [encoding, *encoding.overflowing]  # the library cuts each to `max_tokens` tokens
        words = [word for part in parts for word in part.word_ids]
        ends = [end for part in parts for _, end in part.offsets]
        if len(words) <= self.max_tokens:
            return False
        last_end = len(beginning) - self._added_length
        unsure = next((word for word, end in zip(words, ends, strict=True) if end > last_end), words[-1])
        return words.index(unsure) >= self.max_tokens


def _is_of_bert(library: Any) -> bool:
    """Return whether words are split and tokenized as in BERT, and added tokens cannot be part of words."""
    from tokenizers import models, normalizers, pre_tokenizers  # type: ignore[import-not-found, unused-ignore]

    return (
        isinstance(library.model, models.WordPiece)
        and isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(library.normalizer, normalizers.BertNormalizer)
        and library.normalizer.clean_text
        and all(
            not token.normalized and re.fullmatch(r"[^\w\s](\S*[^\w\s])?", token.content)
            for token in library.get_added_tokens_decoder().values()
        )
    )
