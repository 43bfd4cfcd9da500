"""Speech to text by a pretrained encoder-decoder: Whisper. The steps that a search for the best text is made of."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..functions.arrays import Tensor, to_numpy
from ..functions.messages import in_the_name_of, listed, name_of_type, shown
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_boolean, checked_integer
from ..functions.token_cache import TokenCache
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from .architecture.family import SPEECH_TO_TEXT
from .architecture.model import Model
from .architecture.open import open_model
from .files.source import Source
from .files.speech_files import SpeechSettings, check_spectrogram, checked_heads, find_speech
from .pretrained import PretrainedModel
from .text.inputs import check_sequences, checked_sequences
from .text.tokenizer import NoTokenizer, Tokenizer, require_library

# The caches of a decoder begin with room for so many sequences; with more of them it doubles.
_FIRST_SEQUENCES = 8

_PAGE = 64  # tokens of a page of the caches


class EncodedSpeech:
    """Rows of windows of speech, from `SpeechSeq2Seq.encode`.

    Parameters
    ----------
    rows : [B, S, E]
        The rows of the encoder for B windows, in the dtype of the model: one for two frames.
    layers
        The decoder that reads them.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import SpeechSeq2Seq
    >>> model = SpeechSeq2Seq.from_pretrained("openai/whisper-tiny.en")
    >>> encoded = model.encode(np.zeros((2, 80, 20), np.float32))
    >>> encoded.rows.shape == (2, 10, model.embed_dim)
    True
    """

    def __init__(self, rows: NDArray[Any], layers: Any) -> None:
        self.rows = rows
        self._layers, self._memory = layers, None

    def _memory_caches(self, num_threads: int | None) -> list[TokenCache]:
        """Return the keys and values of the windows in every layer of the decoder, projected once."""
        memory: Any = self._memory
        if memory is None:
            memory = self._memory = self._layers.project_memory(self.rows, num_threads=num_threads)
        caches: list[TokenCache] = memory
        return caches


class SpeechDecoder:
    """Sequences of tokens that a decoder reads step by step, each about one window.

    Use `SpeechSeq2Seq.decoder` to begin them.

    Parameters
    ----------
    model, encoded, windows, num_threads
        The parts that `SpeechSeq2Seq.decoder` has checked.

    Notes
    -----
    Only one call at a time may change a decoder.

    Examples
    --------
    A beam search: two sequences continue the first one.

    >>> import numpy as np
    >>> from mha_native.models import SpeechSeq2Seq
    >>> model = SpeechSeq2Seq.from_pretrained("openai/whisper-tiny.en")
    >>> decoder = model.decoder(model.encode(np.zeros((1, 80, 20), np.float32)), [0])
    >>> logits = decoder.step([[50257, 50362]], last_only=True)
    >>> decoder.select([0, 0])
    >>> logits = decoder.step([[464], [632]])
    >>> decoder.lengths
    array([3, 3])
    """

    def __init__(
        self, model: Model, encoded: EncodedSpeech, windows: NDArray[np.int64], num_threads: int | None
    ) -> None:
        self._model, self._windows, self._num_threads = model, windows, num_threads
        self._memory = encoded._memory_caches(num_threads)
        self._lengths = np.zeros(len(windows), np.int64)
        self._caches = self._new_caches(max(len(windows), _FIRST_SEQUENCES))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens that each sequence has read, [n]."""
        return self._lengths.copy()

    def step(self, tokens: Sequence[ArrayLike], *, last_only: bool = False) -> NDArray[np.floating]:
        """Read the next tokens of every sequence; return the logits of the token after each of them.

        Parameters
        ----------
        tokens : n integer arrays
            The next tokens of each sequence, at least one.
        last_only : bool, default False
            Return the logits after the last token of each sequence alone.

        Returns
        -------
        logits : float32 [N, V]
            N is the number of tokens, those of the first sequence first; with `last_only`, n. float64 for a model in
            float64. A row has the same bits whatever other sequences there are.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or a sequence becomes longer than `max_target_positions`. Nothing changes.
        """
        name = "SpeechDecoder.step"
        only = checked_boolean(name, "last_only", last_only)
        new, counts = self._checked_tokens(name, tokens)
        # Sequences about one window come one after another, so that the keys of the window are read once.
        order = np.argsort(self._windows, kind="stable")
        ends = np.cumsum(counts)
        rows = np.concatenate([np.arange(ends[i] - counts[i], ends[i]) for i in order])
        cu_seqlens = np.concatenate([[0], np.cumsum(counts[order])])
        places = np.concatenate([self._lengths[i] + np.arange(counts[i]) for i in order])
        stack, threads = self._model.stacks[1], self._num_threads
        with in_the_name_of(name):
            x = stack.front_end(new[rows], cu_seqlens, threads, places=places)
            x = stack.run(
                x,
                caches=self._caches,
                cu_seqlens=cu_seqlens,
                sequences=order,
                memory_caches=self._memory,
                memory_sequences=self._windows[order],
                num_threads=threads,
            )
        self._lengths += counts
        in_order = np.empty_like(x)
        in_order[rows] = x
        return self._model.logits(in_order[ends - 1] if only else in_order, threads)

    def select(self, indices: ArrayLike) -> None:
        """Keep, copy and drop sequences: sequence i becomes a copy of sequence ``indices[i]``.

        Copies share the memory of their tokens until one of them reads more.

        Parameters
        ----------
        indices : integer array [m]
            Of sequences from 0 to n - 1; at least one.
        """
        name = "SpeechDecoder.select"
        chosen = _checked_indices(name, "indices", indices, len(self._windows))
        if len(chosen) > self._caches[0].batch_size:
            self._grow(max(len(chosen), 2 * self._caches[0].batch_size))
        slots = self._caches[0].batch_size
        index, unused = np.arange(slots), np.arange(len(chosen), slots)
        index[: len(chosen)] = chosen
        for cache in self._caches:
            paged: Any = cache
            paged.reorder(index)
            if len(unused):
                paged.release(unused)
        self._lengths, self._windows = self._lengths[chosen], self._windows[chosen]

    def _checked_tokens(self, name: str, tokens: Sequence[ArrayLike]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens [N] of all sequences, and the number of tokens of each [n]."""
        given, config = checked_sequences(f"{name}: tokens", tokens), self._model.config
        if len(given) != len(self._windows):
            count = len(self._windows)
            raise ValueError(f"{name}: tokens must be an array for each sequence, {count}; got {len(given)}")
        check_sequences(f"{name}: tokens", given, config.vocab_size, None)
        counts = np.array([len(of_sequence) for of_sequence in given])
        most = config.max_positions or 0
        if (longest := int((self._lengths + counts).max())) > most:
            raise ValueError(f"{name}: tokens: a sequence must have at most {most} tokens; got {longest}")
        return np.concatenate(given), counts

    def _new_caches(self, slots: int) -> list[TokenCache]:
        pages = slots * -(-(self._model.config.max_positions or 0) // _PAGE)
        layers: Any = self._model.stacks[1].layers
        caches: list[TokenCache] = layers.new_caches(slots, _PAGE, page_size=_PAGE, num_pages=pages)
        return caches

    def _grow(self, slots: int) -> None:
        """Move the tokens to caches with room for more sequences."""
        more = slots - self._caches[0].batch_size
        grown = self._new_caches(slots)
        for old, new in zip(self._caches, grown, strict=True):
            keys, values = (np.pad(x, [(0, more), (0, 0), (0, 0), (0, 0)]) for x in (old.keys, old.values))
            new.append(keys, values, new_lengths=np.pad(old.lengths, (0, more)))
        self._caches = grown


class SpeechSeq2Seq(PretrainedModel):
    """A pretrained encoder-decoder that reads log-mel spectrograms, and gives logits of the text: Whisper.

    Use `from_pretrained` to open a model. It has the steps of a transcription, without the rules of decoding.

    Parameters
    ----------
    model, source, tokenizer, num_threads
        The parts that `from_pretrained` reads.

    Notes
    -----
    The result of a window does not depend on the other windows of a batch, nor on the number of threads.

    You can call a model from several threads at once, each with its own decoders.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import SpeechSeq2Seq
    >>> model = SpeechSeq2Seq.from_pretrained("openai/whisper-tiny.en")
    >>> encoded = model.encode(np.zeros((1, model.mel_bins, model.max_frames), np.float32))
    >>> decoder = model.decoder(encoded, [0])
    >>> logits = decoder.step([np.array([50257, 50362])])
    """

    _model: Model
    _SHOWN = ("embed_dim", "num_layers", "num_decoder_layers", "num_heads", "vocab_size", "mel_bins")

    def __init__(
        self, model: Model, source: Source, tokenizer: Tokenizer | NoTokenizer, num_threads: int | None = None
    ) -> None:
        self._model, self._tokenizer, self._num_threads = model, tokenizer, num_threads
        self._settings = SpeechSettings(source, model.config)

    @classmethod
    def from_pretrained(
        cls,
        model: str | PathLike[str],
        *,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        num_threads: int | None = None,
    ) -> "SpeechSeq2Seq":
        """Open a Whisper in the files of transformers, or of CTranslate2.

        Parameters
        ----------
        model : path of a directory, or name of a model
            With config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json), as transformers saves them, and perhaps generation_config.json and
            preprocessor_config.json; or with model.bin, config.json and tokenizer.json, as CTranslate2 does for
            faster-whisper. A str that is not a directory is looked up, or downloaded, as by `CausalLM.from_pretrained`.
        dtype, weight_dtype : optional
            As for `CausalLM.from_pretrained`. Matrices of int8 in files of CTranslate2 become float32; "int8" gives
            their integers again.
        num_threads : int, optional
            Threads of all calls; default: `mha_native.num_threads`.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As `CausalLM.from_pretrained` does.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            threads = threads_of_call(function, num_threads)
            source = find_speech(model)
            opened = open_model(source, SPEECH_TO_TEXT)
            check_spectrogram(source, opened.config)
            tokenizer = _tokenizer(source, opened.config.vocab_size)
            return cls(opened.load(kind, stored), source, tokenizer, threads)

    def encode(self, features: Tensor, *, num_threads: int | None = None) -> EncodedSpeech:
        """Read log-mel spectrograms of windows.

        Parameters
        ----------
        features : float array [B, M, T]
            B windows of T frames with `mel_bins` features M each. T is even, and at most `max_frames`: shorter windows
            are read as they are, without padding.
        num_threads : int, optional
            Threads of this call; default: the `num_threads` of `from_pretrained`.

        Returns
        -------
        encoded : EncodedSpeech

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule.
        """
        name = f"{type(self).__name__}.encode"
        given = to_numpy(name, "features", features)
        if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
            got = listed([str(given.dtype)]) if isinstance(given, np.ndarray) else name_of_type(given)
            raise TypeError(f"{name}: features must be an array of a float dtype; got {got}")
        most = self.max_frames
        if (
            given.ndim != 3
            or given.shape[1] != self.mel_bins
            or not len(given)
            or given.shape[2] % 2
            or not 2 <= given.shape[2] <= most
        ):
            raise ValueError(
                f"{name}: features must be [B, {self.mel_bins}, T] with an even T from 2 to {most}; "
                f"got {list(given.shape)}"
            )
        threads = self._threads(name, num_threads)
        with in_the_name_of(name):
            rows = self._model.speech_rows(given, threads)
        return EncodedSpeech(rows, self._model.stacks[1].layers)

    def decoder(self, encoded: EncodedSpeech, sequences: ArrayLike, *, num_threads: int | None = None) -> SpeechDecoder:
        """Begin sequences of tokens about windows.

        Parameters
        ----------
        encoded : EncodedSpeech
            From `encode` of this model.
        sequences : integer array [n]
            The window that each sequence is about. Those about one window share its keys and values.
        num_threads : int, optional
            Threads of all steps; default: the `num_threads` of `from_pretrained`.

        Returns
        -------
        decoder : SpeechDecoder
            With n sequences that have read no token.
        """
        name = f"{type(self).__name__}.decoder"
        self._check_encoded(name, encoded)
        windows = _checked_indices(name, "sequences", sequences, len(encoded.rows))
        threads = self._threads(name, num_threads)
        with in_the_name_of(name):
            return SpeechDecoder(self._model, encoded, windows, threads)

    def alignment(
        self,
        encoded: EncodedSpeech,
        window: int,
        tokens: ArrayLike,
        heads: Sequence[tuple[int, int]] | None = None,
        *,
        logits: bool = False,
        num_threads: int | None = None,
    ) -> Any:
        """Return the weights that tokens give to the rows of a window, in a few heads of the decoder.

        Parameters
        ----------
        encoded : EncodedSpeech
            From `encode` of this model.
        window : int
            The window that the tokens are about.
        tokens : integer array [T]
            All tokens that the decoder reads, from the one that starts a text on.
        heads : sequence of (layer, head), optional
            Default: `alignment_heads`. Weights of other heads are not computed.
        logits : bool, default False
            Return the logits of the same pass, too.
        num_threads : int, optional
            Threads of this call; default: the `num_threads` of `from_pretrained`.

        Returns
        -------
        weights : float32 [h, T, S]
            In the order of `heads`; rows sum to 1. float64 for a model in float64.
        logits : float32 [T, V]
            Only with `logits`: the logits of the token after each of the tokens.
        """
        name = f"{type(self).__name__}.alignment"
        with_logits = checked_boolean(name, "logits", logits)
        self._check_encoded(name, encoded)
        place = checked_integer(name, "window", window, 0, len(encoded.rows) - 1)
        read = _checked_indices(name, "tokens", tokens, self.vocab_size)
        if len(read) > self.max_target_positions:
            raise ValueError(f"{name}: tokens must be at most {self.max_target_positions}; got {len(read)}")
        decoder = self._model.config.stacks[1]
        given = self.alignment_heads if heads is None else heads
        chosen = checked_heads(f"{name}: heads", given, len(decoder.blocks), decoder.blocks[0].num_heads)
        threads = self._threads(name, num_threads)
        with in_the_name_of(name):
            caches = encoded._memory_caches(threads)
            weights, rows = self._model.memory_weights(caches, place, read, chosen, threads)
            return (weights, self._model.logits(rows, threads)) if with_logits else weights

    @property
    def tokenizer(self) -> Tokenizer | NoTokenizer:
        """The tokenizer of tokenizer.json."""
        return self._tokenizer

    @property
    def generation_config(self) -> dict[str, Any]:
        """The entries of generation_config.json, or of config.json of CTranslate2 with the same names."""
        return dict(self._settings.generation)

    @property
    def mel_bins(self) -> int:
        """M, the features of a frame: 80, or 128 for large-v3 and models that are made from it."""
        return int(self._model.config.stacks[0].front_end.mel_bins)

    @property
    def max_frames(self) -> int:
        """The largest number of frames of a window, 3000 for 30 seconds."""
        return 2 * int(self._model.config.stacks[0].front_end.max_positions or 0)

    @property
    def max_target_positions(self) -> int:
        """The largest number of tokens of a sequence."""
        return int(self._model.config.max_positions or 0)

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder; `num_layers` is the number of layers of the encoder."""
        return len(self._model.config.stacks[1].blocks)

    @property
    def multilingual(self) -> bool:
        """Whether the model knows several languages."""
        return self._settings.multilingual

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """The heads (layer, head) of the decoder whose weights tell where a word is spoken.

        They are in the files of a model; else they are all heads of the upper half of the layers.
        """
        return list(self._settings.alignment_heads)

    @property
    def suppress_ids(self) -> list[int]:
        """The tokens that the files suppress in a text."""
        return list(self._settings.suppress_ids)

    @property
    def suppress_ids_begin(self) -> list[int]:
        """The tokens that the files suppress at the beginning of a text."""
        return list(self._settings.suppress_ids_begin)

    def _reader(self) -> tuple[Any, bool]:
        return self._tokenizer, False

    def _threads(self, name: str, given: int | None) -> int | None:
        return self._num_threads if given is None else threads_of_call(name, given)

    def _check_encoded(self, name: str, encoded: EncodedSpeech) -> None:
        if not isinstance(encoded, EncodedSpeech) or encoded._layers is not self._model.stacks[1].layers:
            raise ValueError(f"{name}: encoded must be from encode of this model; got {shown(encoded)}")


def _checked_indices(name: str, argument: str, given: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return integers [n] from 0 to ``count - 1``, of which there must be one."""
    try:
        array = np.asarray(given)
    except Exception as error:  # whatever the object raises
        raise TypeError(f"{name}: {argument} must be integers [n]; got {name_of_type(given)}") from error
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise TypeError(f"{name}: {argument} must be integers [n], one at least; got {shown(given)}")
    if array.min() < 0 or array.max() >= count:
        wrong = int(array[(array < 0) | (array >= count)][0])
        raise ValueError(f"{name}: {argument} must be from 0 to {count - 1}; got {wrong}")
    return array.astype(np.int64)


def _tokenizer(source: Source, vocab_size: int) -> Tokenizer | NoTokenizer:
    if not source.has_tokenizer:
        return NoTokenizer(("another file",))
    tokenizer = Tokenizer(source.tokenizer())
    tokenizer.check_vocabulary(source.path, vocab_size)
    return tokenizer
