"""tokenizer.json: from texts to tokens, by the library tokenizers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .._messages import listed
from ._long_texts import LongTexts
from ._model_files import FUNCTION, require_file
from ._sentence_files import SentenceConfig


class Tokenizer:
    """The tokens of texts, special tokens included, of a long text the first `max_seq_length`.

    Raises
    ------
    ImportError
        Without the library.
    FileNotFoundError, ValueError
        If the file is missing or damaged, or does not fit the other files of the model. In `encode` and `encode_batch`
        if the library fails, which it does late for some damaged files.
    """

    def __init__(self, path: Path, vocab_size: int, config: SentenceConfig) -> None:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]

        require_file(path)
        with _library_errors(f"{FUNCTION}: {path} is no valid tokenizer"):
            library = tokenizers.Tokenizer.from_file(str(path))
            num_tokens, num_special = library.get_vocab_size(), library.num_special_tokens_to_add(False)
        if num_tokens > vocab_size:
            raise ValueError(
                f"{FUNCTION}: {path} has {num_tokens} tokens, more than vocab_size of config.json, {vocab_size}"
            )
        if config.max_seq_length <= num_special:
            raise ValueError(
                f"{FUNCTION}: max_seq_length must leave room beside {num_special} special tokens; "
                f"got {config.max_seq_length}"
            )
        if config.pooling == "cls" and num_special == 0:
            raise ValueError(f"{FUNCTION}: {path} adds no first token, which the pooling asks for")
        with _library_errors(f"{FUNCTION}: {path} is no valid tokenizer"):
            library.no_padding()
            library.enable_truncation(config.max_seq_length)
            self._long_texts = LongTexts(library, config.max_seq_length)
        self._library = library
        self._lower_case = config.lower_case

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """The tokens of a text: their numbers, and as the tokenizer writes them."""
        with _library_errors("SentenceEncoder: the tokenizer failed"):
            encoding = self._library.encode(self._prepared(text))
            return encoding.ids, encoding.tokens

    def encode_batch(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text."""
        with _library_errors("SentenceEncoder: the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._prepared(text) for text in texts])
        for encoding in encodings:
            yield encoding.ids

    def _prepared(self, text: str) -> str:
        return self._long_texts.beginning(text.lower() if self._lower_case else text)


@contextlib.contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Errors of the library as ValueError: plain Exception, and PanicException, which derives from BaseException."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # KeyboardInterrupt, for example
        raise ValueError(f"{what}: {listed(str(error).splitlines()[:1])}") from error
