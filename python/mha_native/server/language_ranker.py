"""A reranker that is a language model, in the place of a `TextClassifier` with a single label."""

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.files.hub_cache import find_directory
from ..models.heads.labels import apply_function
from ..models.heads.token_ranker import TokenRanker, load_token_ranker
from ..models.text.prompts import read_settings
from ..models.text.text_call import TextCall, text_call


class LanguageRanker:
    """Scores of pairs by the logits of "yes" and "no", with the default prompt of the files of the model."""

    labels = TokenRanker.labels.names

    def __init__(self, ranker: TokenRanker, prompt: str) -> None:
        self._ranker, self._prompt = ranker, prompt
        self.max_length = ranker.config.max_seq_length
        self.dtype, self.weight_dtype = ranker.model.dtype, ranker.model.weight_dtype

    @classmethod
    def from_pretrained(cls, model: str | PathLike[str], *, dtype: str, weight_dtype: str | None) -> "LanguageRanker":
        """Open a model, as `CrossEncoder` of the package sentence_transformers does."""
        home = find_directory(model)
        ranker = load_token_ranker(f"{cls.__name__}.from_pretrained", home, dtype, weight_dtype)
        return cls(ranker, read_settings(home, "CrossEncoder").prompts.chosen(cls.__name__, None, None))

    def whole_counts(self, texts: list[Any]) -> list[int]:
        """Return the number of tokens of pairs before they are cut."""
        return self._ranker.count_tokens("texts", texts, self._prompt)

    def _text_call(self, name: str, texts: Any, *, function_to_apply: str | None = None) -> TextCall:
        """Return the call for the scores [N, 1] of pairs."""
        function = TokenRanker.labels.function if function_to_apply is None else function_to_apply

        def result(rows: list[Any]) -> "NDArray[np.float32]":  # a string, which no call evaluates
            return apply_function(function, np.array(rows, np.float32).reshape(len(rows), 1))

        return text_call(self._ranker.model, self._ranker.texts_of(f"{name}: texts", texts, self._prompt), result)
