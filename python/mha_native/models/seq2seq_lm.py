"""Text to text by a pretrained encoder-decoder: summaries, translations, and answers of T5."""

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..functions.deprecation import renamed_keyword
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_integer
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from .architecture.family import TEXT_TO_TEXT
from .architecture.model import Model
from .architecture.open import open_model
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.source import Source
from .files.special_tokens import read_special_tokens
from .generation.beam_search import BeamRules, GeneratedText, SearchKeywords, SpecialTokens, search
from .generation.pretrained_generator import PretrainedGenerator
from .text.inputs import check_sequences, checked_texts, checked_tokens
from .text.tokenizer import NoTokenizer, Tokenizer, library_errors, read_prompts, require_library

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["GeneratedText", "Seq2SeqLM"]

# The decoder reads at most this many beams of all texts together, and keeps at most this many tokens of memory for
# them, with as many for each beam as the longest text has. With 12 layers of 1024 features they take 400 MiB.
_MOST_BEAMS = 64
_MOST_MEMORY = 4096


class Seq2SeqLM(PretrainedGenerator):
    """A pretrained encoder-decoder: it reads a text, and writes another one.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, tokenizer, special
        The parts that `from_pretrained` reads.

    Notes
    -----
    Texts of different length are read one after another, without padding. The result of a text does not depend on the
    other texts of a list.

    Needs the package tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> from mha_native.models import Seq2SeqLM
    >>> model = Seq2SeqLM.from_pretrained("facebook/bart-large-cnn")
    >>> text = "The tower is 324 metres tall, about the same height as an 81-storey building."
    >>> summary = model.generate(text, max_new_tokens=20, num_beams=4, length_penalty=2.0)
    """

    _model: Model
    _SHOWN = ("embed_dim", "num_layers", "num_decoder_layers", "num_heads", "vocab_size", "max_length")

    def __init__(self, model: Model, tokenizer: Tokenizer | NoTokenizer, special: SpecialTokens) -> None:
        self._model, self._tokenizer, self._special = model, tokenizer, special

    @classmethod
    @renamed_keyword("directory", "model")
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "Seq2SeqLM":
        """Open a model in the files of transformers.

        Parameters
        ----------
        model : path of a directory, or name of a model
            With config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json) of a model whose ``model_type`` is bart, marian, mbart, m2m_100, pegasus, mt5,
            umt5 or t5, which all versions of T5 and Flan-T5 have. Marian, M2M-100 and Pegasus may lack tokenizer.json,
            and then read tokens only.
            A str that is not a directory is looked up, or downloaded, as by `SentenceEncoder.from_pretrained`. The
            tokens that begin and end a text, and forced tokens, are read from generation_config.json, or without this
            file from config.json. Entries of these files about the number of beams, lengths and the like are not used.
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
            source = FolderSource(find_directory(model))
            opened = open_model(source, TEXT_TO_TEXT)
            special = read_special_tokens(source, opened.family.defaults, opened.config.vocab_size)
            tokenizer = _tokenizer(source, opened.config.max_positions, opened.family.text_files)
            return cls(opened.load(kind, stored), tokenizer, special)

    def generate(self, texts: str | Iterable[str], **options: "Unpack[SearchKeywords]") -> Any:
        """Write a text for each text: the most probable one that a search finds.

        Parameters
        ----------
        texts : str, or B of them
            Texts, with the task as a prefix for models such as T5: ``"summarize: ..."``. Tokens of a text beyond the
            positions of the model are cut.
        max_new_tokens : int, default 256
            The largest number of new tokens. A text also ends at an end token. The default is lower for a model with
            fewer positions.
        num_beams : int, default 1
            Number of beams. 1 takes the most probable token in every step.
        length_penalty : float from -16 to 16, default 1
            Texts are compared by the logarithm of their probability divided by ``n ** length_penalty``, for texts of n
            tokens. A value above 0 favours long texts.
        early_stopping : bool or "never", default False
            The end of a beam search that has as many finished texts as beams. True ends it at once. False ends it when
            the best beam, at its present length, scores lower than all of these texts. "never" compares the beam at
            the length that favours it most.
        no_repeat_ngram_size : int, default 0
            N-grams of this length may occur only once; 0 disables the check.
        min_new_tokens : int, default 0
            The smallest number of tokens. No token ends the text earlier.
        forced_first_token : int, optional
            The first token, such as the language of mBART and NLLB. Default: the one in the files of the model, if any.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`.

        Returns
        -------
        text : str
            Without special tokens. For several texts a list of B.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or a text is not a str.
        """
        name = f"{type(self).__name__}.generate"
        is_one = isinstance(texts, str)
        given: Iterable[Any] = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        checked = self._checked(name, options)
        with in_the_name_of(name):
            sequences = [self._tokenizer.encode(f"{name}: texts", text, i) for i, text in enumerate(given)]
            written = [self._tokenizer.decode(found.tokens.tolist()) for found in self._found(sequences, *checked)]
        return written[0] if is_one else written

    @renamed_keyword("sequences", "texts")
    def generate_tokens(self, texts: Any, **options: "Unpack[SearchKeywords]") -> Any:
        """Return the tokens that `generate` decodes to text.

        Parameters
        ----------
        texts : str, or integers [T], or B of them in a list
            Tokens are taken as they are, special ones included; at least one for each text.
        **options
            As for `generate`.

        Returns
        -------
        found : GeneratedText
            For a list of texts a list of B.
        """
        name = f"{type(self).__name__}.generate_tokens"
        checked = self._checked(name, options)
        is_one, tokens = read_prompts(self._tokenizer, name, "texts", texts, self.vocab_size, self.max_length)
        with in_the_name_of(name):
            found = self._found(tokens, *checked)
        return found[0] if is_one else found

    def logits(self, text: ArrayLike, target: ArrayLike, *, num_threads: int | None = None) -> NDArray[Any]:
        """Return the logits of the token after each token of a target.

        Parameters
        ----------
        text : integers [S]
            The tokens that the encoder reads.
        target : integers [T]
            The tokens that the decoder reads, `start_token` first.
        num_threads : int, optional

        Returns
        -------
        logits : float32 [T, V]
            float64 for a model in float64.
        """
        name = f"{type(self).__name__}.logits"
        source, read = (
            checked_tokens(f"{name}: {argument}", given, 0) for argument, given in (("text", text), ("target", target))
        )
        for argument, tokens in (("text", source), ("target", read)):
            check_sequences(f"{name}: {argument}", [tokens], self.vocab_size, self.max_length)
        num_threads = threads_of_call(name, num_threads)
        with in_the_name_of(name):
            memory = self._model.hidden_states(np.array(source), np.array([0, len(source)]), num_threads)
            return self._model.target_logits(memory, np.array(read), num_threads)

    @property
    def start_token(self) -> int:
        """The token that the decoder reads before the first token."""
        return self._special.start

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text, each as its last token."""
        return self._special.ends

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder; `num_layers` is the number of layers of the encoder."""
        return len(self._model.config.stacks[1].blocks)

    @property
    def max_length(self) -> Any:
        """P, the largest number of tokens of a text that is read or written, an int; None for any number."""
        return self._model.config.max_positions

    def _checked(self, name: str, options: "SearchKeywords") -> tuple[BeamRules, SpecialTokens, int | None]:
        """Return the options of a search, checked."""
        rules, special = BeamRules.checked(name, options, self.max_length), self._special
        forced_first, num_threads = options.get("forced_first_token"), options.get("num_threads")
        if forced_first is not None:
            token = checked_integer(name, "forced_first_token", forced_first, 0, self.vocab_size - 1)
            special = special._replace(forced_first=token)
        return rules, special, threads_of_call(name, num_threads)

    def _found(
        self, sequences: list[list[int]], rules: BeamRules, special: SpecialTokens, num_threads: int | None
    ) -> list[GeneratedText]:
        groups = _groups(sequences, rules.num_beams)
        return [found for group in groups for found in search(self._model, group, rules, special, num_threads)]


def _tokenizer(source: Source, max_positions: int | None, instead: tuple[str, ...]) -> Tokenizer | NoTokenizer:
    """Return the tokenizer of a model that reads at most `max_positions` tokens, or has files `instead` of it."""
    if instead and not source.has_tokenizer:
        return NoTokenizer(instead)
    library = source.tokenizer()
    if max_positions is not None:
        with library_errors("the tokenizer failed"):
            library.enable_truncation(max_positions)
    return Tokenizer(library)


def _groups(sequences: Iterable[list[int]], beams: int) -> Iterator[list[list[int]]]:
    """Yield groups of sequences in order, each as large as the limits of the decoder allow."""
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
