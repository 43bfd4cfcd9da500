"""What a language model says of itself, and its tokens."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..functions.messages import in_the_name_of
from ._generator_face import GeneratorFace
from .architecture.model import Model
from .generation.token_run import GenerationStatistics
from .text.chat_template import ChatTemplate
from .text.inputs import check_vocabulary, checked_tokens
from .text.language_tokenizer import LanguageTokenizer


class LanguageFace(GeneratorFace):
    """Attributes of `CausalLM`, and its tokenizer.

    Parameters
    ----------
    model : Model
    tokenizer : LanguageTokenizer
    template : ChatTemplate
    end_tokens : iterable of int
        Each of them ends a text.
    """

    _model: Model

    def __init__(
        self, model: Model, tokenizer: LanguageTokenizer, template: ChatTemplate, end_tokens: Iterable[int]
    ) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._end_tokens = frozenset(end_tokens)
        self._statistics = GenerationStatistics(0, 0, 0, 0.0, 0.0)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> NDArray[np.int64]:
        """The tokens [T] of a text, with those that begin or end each text unless `add_special_tokens` is False."""
        name = f"{type(self).__name__}.encode"
        special = _core.boolean(name, "add_special_tokens", add_special_tokens)
        with in_the_name_of(name):
            return np.array(self._tokenizer.encode(f"{name}: text", text, 0, special=special), np.int64)

    def decode(self, tokens: Any) -> str:
        """The text of tokens [T], without special ones."""
        name = f"{type(self).__name__}.decode"
        checked = checked_tokens(f"{name}: tokens", tokens, 0)
        check_vocabulary(name, checked, self.vocab_size)
        with in_the_name_of(name):
            return self._tokenizer.decode(checked)

    @property
    def statistics(self) -> GenerationStatistics:
        """Of the last call that has generated something, or of a stream that has ended or is at its last step."""
        return self._statistics

    @property
    def max_length(self) -> int:
        """P, the most tokens of a text, its continuation included."""
        return int(self._model.max_length)

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return self._model.num_layers

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(embed_dim={self.embed_dim}, num_layers={self.num_layers}, "
            f"vocab_size={self.vocab_size}, max_length={self.max_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )
