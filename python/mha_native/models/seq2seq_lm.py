"""Text to text by a pretrained encoder-decoder: summaries, translations, and answers of T5."""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .. import _core
from ..functions.messages import in_the_name_of
from ..functions.scalars import checked_integer
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from ._generator_face import GeneratorFace
from .architecture.family import TEXT_TO_TEXT
from .architecture.model import Model
from .architecture.open import describe_model
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.source import Source
from .files.special_tokens import read_special_tokens
from .generation.beam_search import BeamRules, EarlyStopping, Found, SpecialTokens, checked_rules
from .generation.search import search
from .text.inputs import check_vocabulary, checked_sequences, checked_texts
from .text.language_tokenizer import LanguageTokenizer, NoTokenizer
from .text.tokenizer import library_errors, require_library

__all__ = ["GeneratedText", "Seq2SeqLM"]

# What goes through the decoder at once: the most beams of all texts together, and the most tokens of the memory that
# are kept for them, as many for each as the longest text has. With 12 layers of 1024 features they take 400 MiB.
_MOST_BEAMS = 64
_MOST_MEMORY = 4096


class GeneratedText(NamedTuple):
    """What `Seq2SeqLM.generate_tokens` gives.

    Parameters
    ----------
    tokens : int64 [n]
        As they were generated, a token that ends the text included.
    score : float
        The logarithm of their probability, divided by ``n ** length_penalty``. Tokens that are forced have
        probability 1.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import GeneratedText
    >>> GeneratedText(np.array([5, 2]), -1.25).score
    -1.25
    """

    tokens: NDArray[np.int64]
    score: float


class Seq2SeqLM(GeneratorFace):
    """A pretrained encoder-decoder: it reads a text, and writes another one.

    Made by `from_pretrained`.

    Parameters
    ----------
    model, tokenizer, special
        What `from_pretrained` reads.

    See Also
    --------
    from_pretrained : What a directory holds.
    generate : Texts for texts.

    Notes
    -----
    Texts of different length are read one after another, without padding. What a text gets does not depend on the texts
    beside it.

    Needs tokenizers: ``pip install "mha_native[text]"``. May be used from several threads at once.

    Examples
    --------
    >>> from mha_native.models import Seq2SeqLM
    >>> model = Seq2SeqLM.from_pretrained("bart-large-cnn")
    >>> text = "The tower is 324 metres tall, about the same height as an 81-storey building."
    >>> summary = model.generate(text, max_new_tokens=20, num_beams=4, length_penalty=2.0)
    """

    _model: Model

    def __init__(self, model: Model, tokenizer: LanguageTokenizer | NoTokenizer, special: SpecialTokens) -> None:
        self._model, self._tokenizer, self._special = model, tokenizer, special

    @classmethod
    def from_pretrained(
        cls, directory: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "Seq2SeqLM":
        """The model in `directory`, as transformers saves it.

        Parameters
        ----------
        directory : path, or name of a model
            With config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json) of a model whose ``model_type`` is bart, marian, mbart, pegasus or t5, which
            all versions of T5 and Flan-T5 have. Marian and Pegasus may do without tokenizer.json, and then take tokens
            and no texts. A str that is no directory is looked up as by `SentenceEncoder.from_pretrained`. If there is
            generation_config.json, it says the tokens that begin and end a text, or are forced; else config.json does.
            What these files say of the number of beams, of lengths and the like is not used.
        dtype, weight_dtype : optional
            As for `CausalLM.from_pretrained`.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As `CausalLM.from_pretrained` does.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            source = FolderSource(find_directory(directory))
            described = describe_model(source, TEXT_TO_TEXT)
            special = read_special_tokens(source, described.family.defaults, described.config.vocab_size)
            tokenizer = _tokenizer(source, described.config.max_positions, described.family.text_files)
            return cls(described.open(kind, stored), tokenizer, special)

    def generate(
        self,
        texts: str | Iterable[str],
        *,
        max_new_tokens: int,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        no_repeat_ngram_size: int = 0,
        min_new_tokens: int = 0,
        forced_first_token: int | None = None,
        num_threads: int | None = None,
    ) -> Any:
        """A text for each text: the most probable one that a search finds.

        Parameters
        ----------
        texts : str, or B of them
            With what the model is told to do, for those that are told by a text, such as T5: ``"summarize: ..."``. Of a
            text with more tokens than the model has positions the first ones count.
        max_new_tokens : int
            A text ends with so many tokens, or at a token that ends it.
        num_beams : int, default 1
            How many beginnings are followed at once. 1 takes the most probable token in every step.
        length_penalty : float from -16 to 16, default 1
            Texts are compared by the logarithm of their probability divided by ``n ** length_penalty``, where n is the
            number of their tokens: what is above 0 favours long texts.
        early_stopping : bool or "never", default False
            When a search by several beams ends, once it has as many texts as beams: True at once; False when the most
            probable beginning, with the length that it has, scores lower than all of them; "never" when it would do so
            even with the length that favours it most.
        no_repeat_ngram_size : int, default 0
            So many tokens must not occur twice in a row of the same ones; 0: they may.
        min_new_tokens : int, default 0
            No token ends the text before so many others.
        forced_first_token : int, optional
            What the first token is, such as the language of mBART. Default: as the files of the model say.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`.

        Returns
        -------
        text : str
            Without special tokens. For several texts a list of B.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or a text is no str.
        """
        name = f"{type(self).__name__}.generate"
        is_one = isinstance(texts, str)
        given: Iterable[Any] = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        rules, special, num_threads = self._arguments(
            name,
            (max_new_tokens, num_beams, length_penalty, early_stopping, no_repeat_ngram_size, min_new_tokens),
            forced_first_token,
            num_threads,
        )
        with in_the_name_of(name):
            sequences = [self._tokenizer.encode(f"{name}: texts", text, i) for i, text in enumerate(given)]
            found = self._search(sequences, rules, special, num_threads)
            written = [self._tokenizer.decode(each.tokens.tolist()) for each in found]
        return written[0] if is_one else written

    def generate_tokens(
        self,
        sequences: Sequence[ArrayLike],
        *,
        max_new_tokens: int,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        no_repeat_ngram_size: int = 0,
        min_new_tokens: int = 0,
        forced_first_token: int | None = None,
        num_threads: int | None = None,
    ) -> list[GeneratedText]:
        """What `generate` makes text of, for texts that are tokens already.

        Parameters
        ----------
        sequences : B of integers [T]
            The tokens of each text, special ones included; at least one.
        max_new_tokens, num_beams, length_penalty, early_stopping, no_repeat_ngram_size, min_new_tokens
        forced_first_token, num_threads
            As for `generate`.

        Returns
        -------
        found : list of B GeneratedText
        """
        name = f"{type(self).__name__}.generate_tokens"
        rules, special, num_threads = self._arguments(
            name,
            (max_new_tokens, num_beams, length_penalty, early_stopping, no_repeat_ngram_size, min_new_tokens),
            forced_first_token,
            num_threads,
        )
        tokens = self._checked_tokens(f"{name}: sequences", sequences)
        with in_the_name_of(name):
            return [
                GeneratedText(each.tokens, each.score) for each in self._search(tokens, rules, special, num_threads)
            ]

    def logits(self, text: ArrayLike, target: ArrayLike, *, num_threads: int | None = None) -> NDArray[Any]:
        """What the model gives every token of the vocabulary behind each token of a target.

        Parameters
        ----------
        text : integers [S]
            The tokens that the encoder reads.
        target : integers [T]
            Those that the decoder reads, `start_token` first.
        num_threads : int, optional

        Returns
        -------
        logits : float32 [T, V]
            Of a model in float64 in float64.
        """
        name = f"{type(self).__name__}.logits"
        (source,) = self._checked_tokens(f"{name}: text", [text])
        (read,) = self._checked_tokens(f"{name}: target", [target])
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        with in_the_name_of(name):
            memory = self._model.hidden_states(np.array(source), np.array([0, len(source)]), num_threads)
            rows = self._model.read_target(memory, np.array(read), num_threads)
            return self._model.logits(rows, num_threads)

    @property
    def start_token(self) -> int:
        """What the decoder reads before the first token."""
        return self._special.start

    @property
    def max_length(self) -> int | None:
        """P, the most tokens of a text that is read or written; None if there may be any number."""
        return self._model.config.max_positions

    def __repr__(self) -> str:
        encoder, decoder = self._model.config.stacks
        return (
            f"{type(self).__name__}(embed_dim={self.embed_dim}, num_layers=({len(encoder.blocks)}, "
            f"{len(decoder.blocks)}), vocab_size={self.vocab_size}, max_length={self.max_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )

    def _arguments(
        self, name: str, rules: tuple[Any, ...], forced_first_token: int | None, num_threads: int | None
    ) -> tuple[BeamRules, SpecialTokens, int | None]:
        """The arguments of a search, checked."""
        checked, special = checked_rules(name, *rules), self._special
        if self.max_length is not None and checked.max_new_tokens > self.max_length:
            raise ValueError(
                f"{name}: max_new_tokens must be at most the positions of the model, {self.max_length}; "
                f"got {checked.max_new_tokens}"
            )
        if forced_first_token is not None:
            token = checked_integer(name, "forced_first_token", forced_first_token, 0, self.vocab_size - 1)
            special = special._replace(forced_first=token)
        return checked, special, None if num_threads is None else checked_size(name, "num_threads", num_threads)

    def _checked_tokens(self, what: str, sequences: Any) -> list[list[int]]:
        """The tokens of texts. Each has from one to as many as there are positions, of the vocabulary."""
        tokens = checked_sequences(what, sequences)
        for i, sequence in enumerate(tokens):
            if not sequence or (self.max_length is not None and len(sequence) > self.max_length):
                most = "" if self.max_length is None else f" and at most {self.max_length} of them"
                raise ValueError(f"{what} must have at least one token{most}; got {len(sequence)} at {i}")
            check_vocabulary(what, sequence, self.vocab_size, i)
        return tokens

    def _search(
        self, sequences: list[list[int]], rules: BeamRules, special: SpecialTokens, num_threads: int | None
    ) -> list[Found]:
        groups = _groups(sequences, rules.num_beams)
        return [found for group in groups for found in search(self._model, group, rules, special, num_threads)]


def _tokenizer(source: Source, max_positions: int | None, instead: tuple[str, ...]) -> LanguageTokenizer | NoTokenizer:
    """Return the tokenizer of a model that reads at most `max_positions` tokens, and may have files `instead` of it."""
    if instead and not source.has_tokenizer:
        return NoTokenizer(instead)
    library = source.tokenizer()
    if max_positions is not None:
        with library_errors("the tokenizer failed"):
            library.enable_truncation(max_positions)
    return LanguageTokenizer(library)


def _groups(sequences: Iterable[list[int]], beams: int) -> Iterator[list[list[int]]]:
    """Sequences in order, as many at once as the decoder may have, or one."""
    group: list[list[int]] = []
    longest = 0
    for sequence in sequences:
        longest, rows = max(longest, len(sequence)), (len(group) + 1) * beams
        if group and (rows > _MOST_BEAMS or rows * longest > _MOST_MEMORY):
            yield group
            group, longest = [], len(sequence)
        group.append(sequence)
    if group:
        yield group
