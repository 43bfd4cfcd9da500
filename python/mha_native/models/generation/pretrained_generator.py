"""The base class of pretrained models that write texts."""

from typing import Any

import numpy as np

from ... import _core
from ...functions.deprecation import renamed_keyword
from ...functions.messages import in_the_name_of
from ..pretrained import PretrainedModel
from ..text.inputs import check_vocabulary, checked_texts, checked_tokens


class PretrainedGenerator(PretrainedModel):
    """A model with a tokenizer for texts of any length: `CausalLM` and `Seq2SeqLM`. Subclasses set `_tokenizer`."""

    _tokenizer: Any

    @renamed_keyword("text", "texts")  # as the function was called `encode`
    def tokenize(self, texts: Any, *, add_special_tokens: bool = True) -> Any:
        """Return the tokens of texts.

        Parameters
        ----------
        texts : str, or B of them in a list
        add_special_tokens : bool, default True
            Add the special tokens that begin or end a text.

        Returns
        -------
        tokens : int64 [T]
            For a list of texts a list of B.
        """
        name = f"{type(self).__name__}.tokenize"
        special = _core.boolean(name, "add_special_tokens", add_special_tokens)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        with in_the_name_of(name):
            encode = self._tokenizer.encode
            found = [np.array(encode(f"{name}: texts", x, i, special=special), np.int64) for i, x in enumerate(given)]
        return found[0] if isinstance(texts, str) else found

    def _reader(self) -> tuple[Any, bool]:
        return self._tokenizer, False

    def decode(self, tokens: Any) -> str:
        """Return the text of tokens [T], without special ones."""
        name = f"{type(self).__name__}.decode"
        checked = checked_tokens(f"{name}: tokens", tokens, 0)
        check_vocabulary(name, checked, self.vocab_size)
        with in_the_name_of(name):
            text: str = self._tokenizer.decode(checked)
            return text
