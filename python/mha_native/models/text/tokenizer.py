"""tokenizer.json: turn texts into tokens, by the package tokenizers."""

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
    """Raise ImportError unless the package is installed."""
    try:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{error.name} is not installed: pip install "mha_native[text]"') from error


def read_library(path: Path) -> Any:
    """Read the ``tokenizers.Tokenizer`` in tokenizer.json. FileNotFoundError or ValueError if missing or damaged."""
    import tokenizers

    require_file(path)
    with library_errors(f"{path} is not a valid tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path))


class Tokenizer:
    """Turn texts into tokens, with special tokens; long texts are cut to `max_seq_length` unless `cuts` is False.

    Raises ImportError without the library, and FileNotFoundError or ValueError if the file is missing or damaged, or
    does not fit the other files of the model. With some damaged files the library fails only in `encode` and
    `encode_batch`.
    """

    def __init__(
        self, folder: Path, vocab_size: int, config: SentenceConfig, needs_first_token: bool, cuts: bool = True
    ) -> None:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]

        path = folder / "tokenizer.json"
        library = read_library(path)
        with library_errors(f"{path} is not a valid tokenizer"):
            num_tokens, num_special = library.get_vocab_size(), library.num_special_tokens_to_add(False)
        if num_tokens > vocab_size:
            raise ValueError(f"{path} has {num_tokens} tokens, more than vocab_size of config.json, {vocab_size}")
        _check_room(config.max_seq_length, num_special)
        if needs_first_token and num_special == 0:
            raise ValueError(f"{path} adds no first token, which the pooling asks for")
        with library_errors(f"{path} is not a valid tokenizer"):
            library.no_padding()
            check_agreement(folder / "tokenizer_config.json", library, config.tokenizer)
            if cuts:
                library.enable_truncation(config.max_seq_length)
            else:
                library.no_truncation()
            self._long_texts = LongTexts(library, config.max_seq_length)
            if config.lower_case:  # character by character, so beginnings of texts stay valid
                steps = [tokenizers.normalizers.Lowercase()] + [library.normalizer] * (library.normalizer is not None)
                library.normalizer = tokenizers.normalizers.Sequence(steps)
            added = library.get_added_tokens_decoder().items()
        self._special = frozenset(number for number, token in added if token.special)
        self._library = library

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """Return the tokens of a text: numbers, and words as the tokenizer writes them."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._long_texts.beginning(text))
            return encoding.ids, encoding.tokens

    def encode_batch(self, texts: list[str]) -> Iterator[list[int]]:
        """Yield the tokens of each text."""
        with library_errors("the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._long_texts.beginning(text) for text in texts])
        for encoding in encodings:
            yield encoding.ids

    def encode_inputs(self, inputs: list[str | tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tokens of each text or pair, and their types. Of a long pair the longer text is cut first."""
        with library_errors("the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._beginnings(given) for given in inputs])
        for encoding in encodings:
            yield encoding.ids, encoding.type_ids

    def encode_pieces(self, text: str) -> Any:
        """Return the library's Encoding of a text, which is whole unless this tokenizer cuts texts."""
        with library_errors("the tokenizer failed"):
            return self._library.encode(text)

    @property
    def library(self) -> Any:
        """The ``tokenizers.Tokenizer``."""
        return self._library

    def _beginnings(self, given: str | tuple[str, str]) -> str | tuple[str, str]:
        return self._long_texts.beginning(given) if isinstance(given, str) else self._long_texts.beginnings(*given)

    def prompt_length(self, prompt: str) -> int:
        """Return the number of tokens that this prompt adds at the beginning of a text, special ones included."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._long_texts.beginning(prompt))
        if not encoding.ids:
            return 0
        ends_special = encoding.special_tokens_mask[-1] == 1 or encoding.ids[-1] in self._special
        return len(encoding.ids) - ends_special

    def cut_at(self, max_seq_length: int) -> "Tokenizer":
        """Return the same tokenizer, which cuts texts to `max_seq_length` tokens."""
        _check_room(max_seq_length, self._library.num_special_tokens_to_add(False))
        other = copy.deepcopy(self)
        other._library.enable_truncation(max_seq_length)
        other._long_texts.max_tokens = max_seq_length
        return other

    def uncut(self) -> Any:
        """Return a copy of the ``tokenizers.Tokenizer`` that does not cut texts."""
        library = copy.deepcopy(self._library)
        library.no_truncation()
        return library


def _check_room(max_seq_length: int, num_special: int) -> None:
    if max_seq_length <= num_special:
        raise ValueError(f"max_seq_length must leave room beside {num_special} special tokens; got {max_seq_length}")


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn errors of the library into ValueError: Exception itself, and PanicException, a BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise  # an exception of a signal handler, for example
        raise ValueError(f"{what}: {listed(str(error).splitlines()[:1])}") from error
