"""The base class of text encoders: prompts, the length of texts, and tokens."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.deprecation import renamed
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from .architecture.model import Model
from .files.sentence_files import SentenceConfig
from .pretrained import PretrainedModel
from .text.batching import slabs
from .text.inputs import check_text, checked_each
from .text.prompts import Settings
from .text.tokenizer import Tokenizer


class TextEncoder(PretrainedModel):
    """A transformer over texts, with the settings of sentence-transformers."""

    def __init__(self, model: Model, tokenizer: Tokenizer, config: SentenceConfig, settings: Settings) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._settings = settings

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a text, special tokens included; longer texts are cut. Can be set up to the
        number of positions."""
        return self._config.max_seq_length

    @max_length.setter
    def max_length(self, max_length: int) -> None:
        name = type(self).__name__
        length = self._model.config.checked_length(name, max_length)
        with in_the_name_of(name, max_seq_length="max_length"):
            self._tokenizer = self._tokenizer.cut_at(length)
        self._config = self._config._replace(max_seq_length=length)

    max_seq_length = renamed("max_seq_length", "max_length")

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of the model, by the names that `encode` takes. A prompt is put before each text."""
        return dict(self._settings.prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the default prompt of calls; None: by default texts have no prompt."""
        return self._settings.prompts.default_name

    @property
    def similarity_fn_name(self) -> str:
        """The function to compare embeddings of this model: "cosine", "dot", "euclidean" or "manhattan"."""
        return self._settings.similarity

    def tokens_of(
        self,
        texts: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        add_special_tokens: bool = True,
    ) -> Any:
        """Return the tokens of texts with their places.

        Parameters
        ----------
        texts : str, or N of them
            As the model reads them, cut to `max_length` tokens.
        prompt_name, prompt
            As for `encode`. Places count from the begin of the prompt.
        add_special_tokens : bool, default True
            Add the tokens that begin and end texts.

        Returns
        -------
        tokens : TokenizedText
            For several texts a list of N.

        Raises
        ------
        TypeError, ValueError
            As for `encode`.
        """
        return self._read_texts("tokens_of", texts, add_special_tokens, prompt_name, prompt)

    def count_tokens(
        self,
        texts: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        add_special_tokens: bool = True,
    ) -> Any:
        """Return the number of tokens of texts, which is the cost of a call for them.

        Parameters
        ----------
        texts, prompt_name, prompt, add_special_tokens
            As for `tokens_of`.

        Returns
        -------
        counts : int64 [N]
            For one text an int.
        """
        return self._read_texts("count_tokens", texts, add_special_tokens, prompt_name, prompt)

    def _before(self, function: str, prompt_name: str | None, prompt: str | None) -> str:
        return self._settings.prompts.chosen(function, prompt_name, prompt)

    def _reader(self) -> tuple[Any, bool]:
        return self._tokenizer, False

    def attention_weights(self, text: str, *, num_threads: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Return the attention weights of a text, in each layer and head.

        Parameters
        ----------
        text : str
            The text, without a prompt.
        num_threads : int, optional
            As for `encode`.

        Returns
        -------
        tokens : list of T str
            The tokens as strings, with special tokens.
        weights : float32 [layers, H, T, T]
            Rows sum to 1.
        """
        name = f"{type(self).__name__}.attention_weights"
        check_text(f"{name}: text", text, 0)
        num_threads = threads_of_call(name, num_threads)
        with in_the_name_of(type(self).__name__):
            ids, tokens = self._tokenizer.encode_words(text)
        weights = self._model.attention_weights(np.array(ids, np.int64), num_threads)
        return tokens, weights.astype(np.float32, copy=False)

    def _tokenize(self, name: str, texts: Iterable[str], prompt: str) -> Iterator[list[int]]:
        """Yield the tokens of each text, after the prompt."""
        for slab in slabs(checked_each(f"{name}: texts", texts)):
            with in_the_name_of(type(self).__name__):
                yield from self._tokenizer.encode_batch([prompt + text for text in slab] if prompt else slab)
