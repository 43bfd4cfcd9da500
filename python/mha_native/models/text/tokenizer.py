"""tokenizer.json: from texts to tokens, by the library tokenizers."""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...functions.messages import listed
from ..files.json_files import require_file
from ..files.sentence_files import SentenceConfig
from .agreement import check_agreement
from .long_texts import LongTexts


def require_library() -> None:
    """ImportError unless the library is installed."""
    try:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{error.name} is not installed: pip install "mha_native[text]"') from error


def read_library(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` in tokenizer.json. FileNotFoundError or ValueError if it is missing or damaged."""
    import tokenizers

    require_file(path)
    with library_errors(f"{path} is no valid tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path))


class Tokenizer:
    """The tokens of texts, special tokens included, of a long text the first `max_seq_length` unless `cuts` is False.

    Raises
    ------
    ImportError
        Without the library.
    FileNotFoundError, ValueError
        If the file is missing or damaged, or does not fit the other files of the model. In `encode` and `encode_batch`
        if the library fails, which it does late for some damaged files.
    """

    def __init__(
        self, folder: Path, vocab_size: int, config: SentenceConfig, needs_first_token: bool, cuts: bool = True
    ) -> None:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]

        path = folder / "tokenizer.json"
        library = read_library(path)
        with library_errors(f"{path} is no valid tokenizer"):
            num_tokens, num_special = library.get_vocab_size(), library.num_special_tokens_to_add(False)
        if num_tokens > vocab_size:
            raise ValueError(f"{path} has {num_tokens} tokens, more than vocab_size of config.json, {vocab_size}")
        _check_room(config.max_seq_length, num_special)
        if needs_first_token and num_special == 0:
            raise ValueError(f"{path} adds no first token, which the pooling asks for")
        with library_errors(f"{path} is no valid tokenizer"):
            library.no_padding()
            check_agreement(folder / "tokenizer_config.json", library, config.tokenizer)
            if cuts:
                library.enable_truncation(config.max_seq_length)
            else:
                library.no_truncation()
            self._long_texts = LongTexts(library, config.max_seq_length)
            if config.lower_case:  # one character for another, which leaves the beginnings of texts what they are
                steps = [tokenizers.normalizers.Lowercase()] + [library.normalizer] * (library.normalizer is not None)
                library.normalizer = tokenizers.normalizers.Sequence(steps)
            added = library.get_added_tokens_decoder().items()
        self._special = frozenset(number for number, token in added if token.special)
        self._library = library

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """The tokens of a text: their numbers, and as the tokenizer writes them."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._long_texts.beginning(text))
            return encoding.ids, encoding.tokens

    def encode_batch(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text."""
        with library_errors("the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._long_texts.beginning(text) for text in texts])
        for encoding in encodings:
            yield encoding.ids

    def encode_inputs(self, inputs: list[str | tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens of each text or pair of texts, and their types. Of a long pair the longer text is cut first."""
        with library_errors("the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._beginnings(given) for given in inputs])
        for encoding in encodings:
            yield encoding.ids, encoding.type_ids

    def encode_pieces(self, text: str) -> Any:
        """The Encoding of a text that the library gives, of which nothing is cut unless the tokenizer cuts."""
        with library_errors("the tokenizer failed"):
            return self._library.encode(text)

    @property
    def library(self) -> Any:
        """The tokenizers.Tokenizer, for what it says of itself."""
        return self._library

    def _beginnings(self, given: str | tuple[str, str]) -> str | tuple[str, str]:
        return self._long_texts.beginning(given) if isinstance(given, str) else self._long_texts.beginnings(*given)

    def prompt_length(self, prompt: str) -> int:
        """The tokens of a prompt, special ones before it included, that a text begins with whose prompt it is."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._long_texts.beginning(prompt))
        if not encoding.ids:
            return 0
        ends_special = encoding.special_tokens_mask[-1] == 1 or encoding.ids[-1] in self._special
        return len(encoding.ids) - ends_special

    def cut_at(self, max_seq_length: int) -> "Tokenizer":
        """The same tokenizer for the first `max_seq_length` tokens of a long text."""
        _check_room(max_seq_length, self._library.num_special_tokens_to_add(False))
        other = copy.deepcopy(self)
        other._library.enable_truncation(max_seq_length)
        other._long_texts.max_tokens = max_seq_length
        return other

    def uncut(self) -> Any:
        """A copy of the tokenizers.Tokenizer, which cuts no text."""
        library = copy.deepcopy(self._library)
        library.no_truncation()
        return library


def _check_room(max_seq_length: int, num_special: int) -> None:
    if max_seq_length <= num_special:
        raise ValueError(f"max_seq_length must leave room beside {num_special} special tokens; got {max_seq_length}")


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Errors of the library as ValueError: plain Exception, and PanicException, which derives from BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise  # what a handler of signals has raised, for example
        raise ValueError(f"{what}: {listed(str(error).splitlines()[:1])}") from error
