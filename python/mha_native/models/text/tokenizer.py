"""tokenizer.json: turn texts into tokens, by the package tokenizers."""

import contextlib
import copy
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import in_the_name_of, listed
from ...functions.needed_packages import pip_install
from ..files.json_files import require_file
from ..files.sentence_files import SentenceConfig
from .agreement import check_agreement
from .inputs import check_sequences, check_text, prompts_in
from .long_texts import LongTexts

# A single text of at most so many characters is tokenized in the calling thread: to wake a thread of the library takes
# longer.
_SHORT = 200


def require_library() -> None:
    """Raise ImportError unless the package is installed."""
    try:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed: {pip_install('tokenizers', extra='text')}") from error


def read_library(folder: Path, settings: Mapping[str, Any], *, is_cut: bool = True) -> Any:
    """Read the ``tokenizers.Tokenizer`` of a folder, without padding, and compare it with tokenizer_config.json.

    `settings` are the entries of tokenizer_config.json. Unless `is_cut`, the library cuts no text, and the side of
    truncation does not matter.

    Raises FileNotFoundError or ValueError if tokenizer.json is missing or damaged, or if the files disagree.
    """
    import tokenizers

    path = require_file(folder / "tokenizer.json")
    with library_errors(f"{path} is not a valid tokenizer"):
        library = tokenizers.Tokenizer.from_file(str(path))
        library.no_padding()
        if not is_cut:
            library.no_truncation()
            settings = {name: value for name, value in settings.items() if name != "truncation_side"}
        check_agreement(folder / "tokenizer_config.json", library, settings)
    return library


def read_tokenizer(
    folder: Path, vocab_size: int, config: SentenceConfig, needs_first_token: bool, cuts: bool = True
) -> "Tokenizer":
    """Read the tokenizer of a text encoder, which cuts texts to `max_seq_length` tokens unless `cuts` is False.

    Raises ImportError without the library, and FileNotFoundError or ValueError if the file is missing or damaged, or
    does not fit the other files of the model.
    """
    import tokenizers  # type: ignore[import-not-found, unused-ignore]

    path = folder / "tokenizer.json"
    library = read_library(folder, config.tokenizer)
    with library_errors(f"{path} is not a valid tokenizer"):
        num_tokens, num_special = library.get_vocab_size(), library.num_special_tokens_to_add(False)
    if num_tokens > vocab_size:
        raise ValueError(f"{path} has {num_tokens} tokens, more than vocab_size of config.json, {vocab_size}")
    _check_room(f"{folder}: ", config.max_seq_length, num_special)
    if needs_first_token and num_special == 0:
        raise ValueError(f"{path} adds no first token, which the pooling asks for")
    with library_errors(f"{path} is not a valid tokenizer"):
        if cuts:
            library.enable_truncation(config.max_seq_length)
        else:
            library.no_truncation()
        long_texts = LongTexts(library, config.max_seq_length)
        if config.lower_case:  # character by character, so beginnings of texts stay valid
            steps = [tokenizers.normalizers.Lowercase()] + [library.normalizer] * (library.normalizer is not None)
            library.normalizer = tokenizers.normalizers.Sequence(steps)
    return Tokenizer(library, long_texts)


def read_tokenizer_of_words(
    folder: Path, vocab_size: int, settings: Mapping[str, Any] | None = None, max_tokens: int | None = None
) -> tuple["Tokenizer", int | None]:
    """Read the tokenizer of a static model, which adds no tokens, and the number of tokens at which it cuts texts.

    With the `settings` of tokenizer_config.json, which may be empty, this number is `max_tokens`, and None cuts none;
    without them it is in tokenizer.json.

    Raises the errors of `read_tokenizer`.
    """
    import tokenizers

    library = read_library(folder, settings or {})
    with library_errors(f"{folder / 'tokenizer.json'} is not a valid tokenizer"):
        library.post_processor = tokenizers.processors.Sequence([])
        if settings is not None:
            library.no_truncation()
            if max_tokens is not None:
                library.enable_truncation(max_tokens)
        length: int | None = None if library.truncation is None else library.truncation["max_length"]
        tokenizer = Tokenizer(library, None if length is None else LongTexts(library, length))
    tokenizer.check_vocabulary(folder, vocab_size)
    return tokenizer, length


class TokenizedText(NamedTuple):
    """The tokens of a text, or of a pair of texts, as a model reads them.

    Parameters
    ----------
    ids : int64 [T]
        Numbers of the tokens.
    tokens : list of T str
        The tokens as the tokenizer writes them.
    offsets : int64 [T, 2]
        The characters of each token: ``text[begin:end]``, of the text that `parts` names, after a prompt if there is
        one.
    special : bool [T]
        Whether the tokenizer has added the token: the begin, an end, or a separator. Its offsets are 0 and 0.
    types : int64 [T]
        The token types of a pair, for models that have them.
    parts : int64 [T]
        0 for tokens of the text, 1 for tokens of the second text of a pair, -1 for special tokens.

    Examples
    --------
    >>> from mha_native.models import SentenceEncoder
    >>> found = SentenceEncoder.from_pretrained("all-MiniLM-L6-v2").tokens_of("A dog")
    >>> found.tokens
    ['[CLS]', 'a', 'dog', '[SEP]']
    >>> found.offsets.tolist()
    [[0, 0], [0, 1], [2, 5], [0, 0]]
    """

    ids: NDArray[np.int64]
    tokens: list[str]
    offsets: NDArray[np.int64]
    special: NDArray[np.bool_]
    types: NDArray[np.int64]
    parts: NDArray[np.int64]

    @classmethod
    def _of(cls, encoding: Any) -> "TokenizedText":
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        special = np.array(encoding.special_tokens_mask, np.bool_)
        parts = np.array([-1 if part is None else part for part in encoding.sequence_ids], np.int64)
        ids, types = (np.array(numbers, np.int64) for numbers in (encoding.ids, encoding.type_ids))
        return cls(ids, encoding.tokens, offsets, special, types, parts)


class Tokenizer:
    """Turns texts into tokens, and tokens into texts.

    With some damaged files the library fails only here; its errors become ValueError. A library with truncation cuts
    texts, and `long_texts` shortens them before that; None: whole texts go to the library.
    """

    def __init__(self, library: Any, long_texts: LongTexts | None = None) -> None:
        self._library, self._long_texts = library, long_texts

    def check_vocabulary(self, path: Path, vocab_size: int) -> None:
        """Raise ValueError if the tokenizer has more tokens than the model at `path`."""
        num_tokens = self._library.get_vocab_size()
        if num_tokens > vocab_size:
            raise ValueError(f"{path}: the tokenizer has {num_tokens} tokens, more than vocab_size, {vocab_size}")

    def encode(self, what: str, text: Any, index: int, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, with the ones that begin or end each text if `special`."""
        check_text(what, text, index)
        with library_errors("the tokenizer failed"):
            ids: list[int] = self._library.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with library_errors("the tokenizer failed"):
            return str(self._library.decode(tokens, skip_special_tokens=True))

    def encode_words(self, text: str) -> tuple[list[int], list[str]]:
        """Return the tokens of a text: numbers, and words as the tokenizer writes them."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._beginning(text))
            return encoding.ids, encoding.tokens

    def encode_batch(self, texts: list[str]) -> Iterator[list[int]]:
        """Yield the tokens of each text."""
        with library_errors("the tokenizer failed"):
            if len(texts) == 1 and len(texts[0]) <= _SHORT:
                encodings = [self._library.encode(texts[0])]
            else:
                encodings = self._library.encode_batch_fast([self._beginning(text) for text in texts])
        for encoding in encodings:
            yield encoding.ids

    def encode_inputs(self, inputs: list[str | tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tokens of each text or pair, and their types. Of a long pair the longer text is cut first."""
        with library_errors("the tokenizer failed"):
            encodings = self._library.encode_batch_fast([self._beginnings(given) for given in inputs])
        for encoding in encodings:
            yield encoding.ids, encoding.type_ids

    def tokenized(self, inputs: list[str | tuple[str, str]], special: bool) -> Iterator[TokenizedText]:
        """Yield what the tokens of each text or pair are, with special ones or not."""
        given = [self._beginnings(each) for each in inputs]
        for i, each in enumerate(inputs):
            # Another text than a beginning has other offsets.
            if not all(text.startswith(cut) for cut, text in zip(_texts(given[i]), _texts(each), strict=True)):
                given[i] = each
        with library_errors("the tokenizer failed"):
            yield from map(TokenizedText._of, self._library.encode_batch(given, add_special_tokens=special))

    def counts(self, inputs: list[str | tuple[str, str]], special: bool) -> list[int]:
        """Return the number of tokens of each text or pair, with special ones or not."""
        with library_errors("the tokenizer failed"):
            given = [self._beginnings(each) for each in inputs]
            return [len(found) for found in self._library.encode_batch_fast(given, add_special_tokens=special)]

    def encode_pieces(self, text: str) -> Any:
        """Return the library's Encoding of a text, which is whole unless this tokenizer cuts texts."""
        with library_errors("the tokenizer failed"):
            return self._library.encode(text)

    @property
    def library(self) -> Any:
        """The ``tokenizers.Tokenizer``."""
        return self._library

    def _beginning(self, text: str) -> str:
        return text if self._long_texts is None else self._long_texts.beginning(text)

    def _beginnings(self, given: str | tuple[str, str]) -> str | tuple[str, str]:
        if isinstance(given, str) or self._long_texts is None:
            return self._beginning(given) if isinstance(given, str) else given
        return self._long_texts.beginnings(*given)

    @functools.cached_property
    def vocabulary_digest(self) -> bytes:
        """A digest of all tokens and their numbers: equal for tokenizers with the same tokens."""
        tokens = sorted(self._library.get_vocab().items())
        return hashlib.sha256(repr(tokens).encode("utf-8", "surrogatepass")).digest()

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        added = self._library.get_added_tokens_decoder().items()
        return frozenset(number for number, token in added if token.special)

    def first_special(self, text: str) -> frozenset[int]:
        """Return the special token that a text begins with, if it begins with one."""
        return frozenset(self.encode("text", text, 0, special=False)[:1]) & self._special

    def prompt_length(self, prompt: str) -> int:
        """Return the number of tokens that this prompt adds at the beginning of a text, special ones included."""
        with library_errors("the tokenizer failed"):
            encoding = self._library.encode(self._beginning(prompt))
        if not encoding.ids:
            return 0
        ends_special = encoding.special_tokens_mask[-1] == 1 or encoding.ids[-1] in self._special
        return len(encoding.ids) - ends_special

    def cut_at(self, max_seq_length: int) -> "Tokenizer":
        """Return the same tokenizer, which cuts texts to `max_seq_length` tokens."""
        _check_room("", max_seq_length, self._library.num_special_tokens_to_add(False))
        other = copy.deepcopy(self)
        other._library.enable_truncation(max_seq_length)
        if other._long_texts is not None:
            other._long_texts.max_tokens = max_seq_length
        return other

    def uncut(self) -> Any:
        """Return a copy of the ``tokenizers.Tokenizer`` that does not cut texts."""
        library = copy.deepcopy(self._library)
        library.no_truncation()
        return library


class NoTokenizer:
    """Fallback for a model with unsupported tokenizer files `instead` of tokenizer.json, which takes tokens only."""

    def __init__(self, instead: Sequence[str]) -> None:
        self._instead = " or ".join(instead)

    def encode(self, what: str, text: Any, index: int, *, special: bool = True) -> list[int]:
        """Raise ValueError."""
        self.refuse(what)

    def refuse(self, what: str) -> NoReturn:
        """Raise ValueError."""
        raise ValueError(
            f"{what} need a tokenizer.json, which the model does not have, and {self._instead} is not read; "
            "generate_tokens takes tokens"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Raise ValueError."""
        raise ValueError(f"tokens need a tokenizer.json to become text; got {len(tokens)} of them")


def _texts(given: str | tuple[str, str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def read_prompts(
    tokenizer: Tokenizer | NoTokenizer,
    function: str,
    argument: str,
    given: Any,
    vocab_size: int,
    max_length: int | None,
    special: bool = True,
) -> tuple[bool, list[list[int]]]:
    """Return whether an argument is a single prompt, and the tokens of each prompt.

    Texts get `special` tokens or not. Each prompt must have from 1 to `max_length` tokens, all of them below
    `vocab_size`; messages name the `argument` of the `function`.
    """
    what = f"{function}: {argument}"
    is_one, prompts = prompts_in(what, given)
    with in_the_name_of(function):
        sequences = [
            tokenizer.encode(what, prompt, i, special=special) if isinstance(prompt, str) else prompt
            for i, prompt in enumerate(prompts)
        ]
    check_sequences(what, sequences, vocab_size, max_length)
    return is_one, sequences


def _check_room(place: str, max_seq_length: int, num_special: int) -> None:
    if max_seq_length <= num_special:
        raise ValueError(
            f"{place}max_seq_length must leave room beside {num_special} special tokens; got {max_seq_length}"
        )


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn errors of the library into ValueError: Exception itself, and PanicException, a BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise  # an exception of a signal handler, for example
        raise ValueError(f"{what}: {listed(str(error).splitlines()[:1])}") from error
