"""The engine of generation: caches into which a model reads tokens, and the loop that chooses the next ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.dtypes import dtype_name, numpy_dtype
from ...functions.messages import in_the_name_of, shown
from ...functions.runtime import threads_of_call
from ...functions.scalars import checked_boolean, checked_integer
from ...layers._constructor_arguments import checked_size
from ..text.batching import packed
from .sampling import SamplingKeywords, SamplingOptions, TokenChoice, checked_token, choose

# Caches have room for this many tokens after the prompts at first. Full caches double, so a long generation moves each
# key about once, while every step reads all keys.
FIRST_ROOM = 256

MOST_NEW_TOKENS = 256  # the default of `max_new_tokens`: some paragraphs

NUM_DRAFT_TOKENS = 8  # the default of `num_draft_tokens`


class GenerationKeywords(SamplingKeywords, total=False):
    """Keyword arguments of all methods of `CausalLM` that generate; `CausalLM.generate` explains them."""

    max_new_tokens: int
    stop: Any
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    num_threads: int | None
    cache_dtype: DTypeLike | None
    draft: Any
    num_draft_tokens: int


class CompletionKeywords(GenerationKeywords, total=False):
    """Keyword arguments of functions that return more than a text; `CausalLM.complete` explains them."""

    logprobs: int | None
    prompt_logprobs: int | None


class GenerationOptions(NamedTuple):
    """`CompletionKeywords` with defaults and the sampling options in one field."""

    max_new_tokens: int
    sampling: SamplingOptions
    stop: tuple[str, ...]
    num_threads: int | None
    cache_dtype: str | None
    stop_tokens: frozenset[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    draft: Any  # as it was given: `checked_draft` knows the model
    num_draft_tokens: int

    @classmethod
    def checked(
        cls,
        function: str,
        given: Mapping[str, Any],
        model_dtype: np.dtype[Any],
        vocab_size: int | None = None,
        keywords: Any = GenerationKeywords,
        without: Sequence[str] = (),
    ) -> "GenerationOptions":
        """Return the options that a caller gave by name, or raise TypeError or ValueError.

        `keywords` is the class of the options that the function has, and `without` names some that it does not have.
        """
        most_new = checked_size(function, "max_new_tokens", given.get("max_new_tokens", MOST_NEW_TOKENS))
        num_threads = threads_of_call(function, given.get("num_threads"))
        sampling = SamplingOptions.checked(function, given, vocab_size, most_new)
        for name in given:
            if name not in keywords.__optional_keys__ or name in without:
                raise TypeError(f"{function}: got an unexpected keyword argument {shown(name)}")
        logprobs, prompt_logprobs = (
            None if given.get(name) is None else checked_integer(function, name, given[name], 0)
            for name in ("logprobs", "prompt_logprobs")
        )
        draft, num_draft = given.get("draft"), given.get("num_draft_tokens", NUM_DRAFT_TOKENS)
        if draft is None and "num_draft_tokens" in given:
            raise ValueError(f"{function}: num_draft_tokens needs a draft; got {shown(num_draft)} without one")
        return cls(
            most_new,
            sampling,
            _checked_stop(function, given.get("stop")),
            num_threads,
            _checked_cache_dtype(function, given.get("cache_dtype"), model_dtype),
            _checked_stop_tokens(function, given.get("stop_token_ids"), vocab_size),
            checked_boolean(function, "ignore_eos", given.get("ignore_eos", False)),
            logprobs,
            prompt_logprobs,
            draft,
            checked_size(function, "num_draft_tokens", num_draft),
        )


def _checked_stop_tokens(function: str, given: Any, vocab_size: int | None) -> frozenset[int]:
    tokens = given.tolist() if isinstance(given, np.ndarray) else () if given is None else given
    if not isinstance(tokens, (list, tuple, set, frozenset)):
        raise TypeError(f"{function}: stop_token_ids must be a list of tokens; got {shown(given)}")
    return frozenset(checked_token(function, "stop_token_ids", token, vocab_size) for token in tokens)


def _checked_stop(function: str, stop: Any) -> tuple[str, ...]:
    given = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"{function}: stop must be a str, or a list of them; got {shown(stop)}")
    if "" in given:
        raise ValueError(f"{function}: stop must be no empty str; got {shown(stop)}")
    return tuple(given)


def _checked_cache_dtype(function: str, dtype: DTypeLike | None, model_dtype: np.dtype[Any]) -> str | None:
    """Return the dtype of caches by name; None is the dtype of the model."""
    if dtype is None:
        return None
    name = dtype_name(model_dtype)
    allowed = ("float32", "bfloat16", "float16", "int8") if name == "float32" else (name,)
    rule = f"{function}: cache_dtype of a model in {name} must be {' or '.join(allowed)}"
    is_bfloat16 = isinstance(dtype, str) and dtype == "bfloat16"  # which is no dtype of NumPy itself
    given = "bfloat16" if is_bfloat16 else dtype_name(numpy_dtype(rule, dtype))
    if given not in allowed:
        raise TypeError(f"{rule}; got {shown(given)}")
    return given


class GenerationStatistics(NamedTuple):
    """Numbers of tokens that a language model has read and generated, and the times that they took.

    Parameters
    ----------
    num_prompts : int
        B.
    prompt_tokens, new_tokens : int
        Tokens of all prompts; generated tokens, with those that end a text.
    prompt_seconds : float
        Until the first new token of each prompt.
    new_seconds : float
        For all other tokens. The time of the caller between two of them is not counted.
    draft_tokens, accepted_tokens : int
        Drafted tokens, and the ones that the model has chosen, too; 0 without a draft.

    Examples
    --------
    >>> from mha_native.models import GenerationStatistics
    >>> statistics = GenerationStatistics(1, 500, 101, 0.5, 2.0)
    >>> statistics.prompt_tokens_per_second, statistics.tokens_per_second
    (1000.0, 50.0)
    """

    num_prompts: int
    prompt_tokens: int
    new_tokens: int
    prompt_seconds: float
    new_seconds: float
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Tokens of prompts read in a second; NaN if there were none."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds > 0 else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens generated in a second, without the first one of each prompt; NaN if there were no others."""
        return (self.new_tokens - self.num_prompts) / self.new_seconds if self.new_seconds > 0 else float("nan")

    @property
    def acceptance_rate(self) -> float:
        """The part of the drafted tokens that was accepted; NaN if there were none."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else float("nan")


class NewTokens(NamedTuple):
    """Tokens that one call of a model appends to caches."""

    tokens: NDArray[np.int64]  # [N]: all tokens of the first sequence, then all tokens of the next one
    places: NDArray[np.int64]  # [N]: the places of tokens in their sequences
    cu_seqlens: NDArray[np.int64]  # [n + 1]: where the tokens of each sequence begin and end
    # [n]: the slots of the sequences in the caches, in ascending order unless the caches are paged.
    slots: NDArray[np.int64]


class CachedModel(NamedTuple):
    """The parts of a model that the engine uses."""

    layers: Sequence[Any]  # each makes its own cache
    # From new tokens, and the caches of all layers, to which it appends them, to vectors [N, E] of the last layer.
    read: Callable[[NewTokens, list[Any]], NDArray[Any]]
    logits: Callable[[NDArray[Any]], NDArray[Any]]  # from rows [n, E] to logits [n, V] in float32 or float64


class Caches:
    """The keys and values of sequences, one in each slot, in all layers of a model.

    The caches begin with room for the `longest` prompt, and grow up to `most` tokens of a sequence. Paged caches do not
    grow: `most` is None. `new_cache` of each layer gets the `options`, too.
    """

    def __init__(self, model: CachedModel, num_slots: int, longest: int, most: int | None, **options: Any) -> None:
        self._read, self._layers, self.logits = model.read, model.layers, model.logits
        self._num_slots, self._most, self._options = num_slots, most, options
        self._capacity = longest if most is None else min(longest + FIRST_ROOM, most)
        self.caches = [self._new(layer) for layer in model.layers]

    def append(
        self,
        tokens: NDArray[np.int64],
        begins: NDArray[np.int64],
        counts: NDArray[np.int64],
        slots: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Read the next tokens of n sequences in one call; return the rows [N, E] of all of them.

        `tokens` [N] are all tokens of the first sequence, then all tokens of the next one: `counts` [n] of them.
        `begins` [n] are the places of the first ones in their sequences.
        """
        if self._most is not None and (needed := int((begins + counts).max())) > self._capacity:
            self._capacity = min(max(needed, 2 * self._capacity), self._most)
            for i, layer in enumerate(self._layers):  # one after another, to need little memory
                old, self.caches[i] = self.caches[i], self._new(layer)
                self.caches[i]._take_tokens(old)
        if len(tokens) == len(slots):
            return self._read(NewTokens(tokens, begins, np.arange(len(slots) + 1), slots), self.caches)
        cu_seqlens = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(len(tokens)) + np.repeat(begins - cu_seqlens[:-1], counts)
        return self._read(NewTokens(tokens, places, cu_seqlens, slots), self.caches)

    def rollback(self, counts: NDArray[np.int64]) -> None:
        """Forget the newest tokens of each slot, `counts` [num_slots] of them."""
        if counts.any():
            for cache in self.caches:
                cache.rollback(counts)

    def _new(self, layer: Any) -> Any:
        return layer.new_cache(self._num_slots, self._capacity, **self._options)


def last_rows(rows: NDArray[Any], ends: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows [n, E] of the last token of each of n sequences, which end before `ends` [n] of rows [N, E]."""
    return rows if len(rows) == len(ends) else rows[ends - 1]


class Step(NamedTuple):
    """The next tokens [n] of the sequences [n] that are going on, and the logits [n, V] that they are chosen by."""

    sequences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logits: NDArray[Any]


def generate_steps(
    function: str,
    caches: Caches,
    choices: Sequence[TokenChoice],
    keep: Callable[[GenerationStatistics], object] = lambda statistics: None,
) -> Iterator[Step]:
    """Yield the next tokens of sequences, step by step; only sequences that are going on are read.

    `caches` have no tokens, and a slot for each sequence. `choices` have the tokens of the prompts, and get the new
    tokens. `keep` gets the statistics after each step. Messages name the caller, `function`.
    """
    sequences = np.arange(len(choices))
    tokens, cu_seqlens = packed([choice.tokens for choice in choices])
    begins, counts = np.zeros_like(sequences), np.diff(cu_seqlens)
    statistics = GenerationStatistics(len(sequences), len(tokens), 0, 0.0, 0.0)
    while len(sequences):
        begin = perf_counter()
        with in_the_name_of(function):
            rows = caches.append(tokens, begins, counts, sequences)
            ends = np.cumsum(counts)
            for choice, first, count, end in zip(choices, begins, counts, ends, strict=True):
                if choice.reads_all:
                    choice.read_prompt(int(first), rows[end - count : end], caches.logits)
            logits = caches.logits(last_rows(rows, ends))
            chosen = add_tokens(choices, logits)
        tokens, seconds = np.array(chosen, np.int64), perf_counter() - begin
        if statistics.new_tokens:
            seconds += statistics.new_seconds
            statistics = statistics._replace(new_tokens=statistics.new_tokens + len(tokens), new_seconds=seconds)
        else:
            statistics = statistics._replace(new_tokens=len(tokens), prompt_seconds=seconds)
        keep(statistics)
        yield Step(sequences, tokens, logits)
        begins = begins + counts
        is_left = [not choice.has_ended for choice in choices]
        if not all(is_left):
            choices = [choice for choice, stays in zip(choices, is_left, strict=True) if stays]
            sequences, tokens, begins = sequences[is_left], tokens[is_left], begins[is_left]
        counts = np.ones_like(sequences)


def add_tokens(choices: Sequence[TokenChoice], logits: NDArray[Any]) -> list[int]:
    """Append the next token to the tokens of each of n sequences, by logits [n, V]; return these tokens."""
    chosen = choose(choices, logits)
    for choice, token in zip(choices, chosen, strict=True):
        if isinstance(token, ValueError):
            raise token
        choice.tokens.append(token)
    return chosen  # type: ignore[return-value]  # there is no error among them


def read_padded(decoder: Any, x: NDArray[Any], new: NewTokens, num_slots: int, **options: Any) -> NDArray[Any]:
    """Call a `Decoder` with rows [N, E] of new tokens; return its rows [N, E].

    Attention to a memory has no ragged form: each slot gets rows of its own, with padding after them.
    """
    counts = np.zeros(num_slots, np.int64)
    counts[new.slots] = np.diff(new.cu_seqlens)
    is_row = np.arange(counts.max()) < counts[:, None]
    padded = np.zeros((*is_row.shape, x.shape[1]), x.dtype)
    padded[is_row] = x
    rows: NDArray[Any] = decoder(padded, new_lengths=counts, **options)[is_row]
    return rows
