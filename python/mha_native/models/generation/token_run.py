"""One run of a language model: prompts of tokens in, new tokens out, with their counts and times."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.dtypes import dtype_name, numpy_dtype
from ...functions.messages import in_the_name_of, shown
from ...layers._constructor_arguments import checked_size
from ..architecture.model import Model
from . import decoding as _decoding
from .sampling import Chooser, SamplingRules, checked_rules


class GenerationOptions(TypedDict, total=False):
    """What all methods of `CausalLM` take that generate; `CausalLM.generate` says what it means."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    stop: Any
    seed: int | None
    num_threads: int | None
    cache_dtype: DTypeLike | None


_MOST_NEW_TOKENS = 256  # unless a caller says otherwise: some paragraphs


class GenerationStatistics(NamedTuple):
    """How many tokens a language model has read and generated, and in what time.

    Parameters
    ----------
    num_prompts : int
        B.
    prompt_tokens, new_tokens : int
        Of all prompts together; of those that were generated, tokens that end a text included.
    prompt_seconds : float
        Until the first new token of each prompt.
    new_seconds : float
        For all others. What a caller does between them is not counted.

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

    @property
    def prompt_tokens_per_second(self) -> float:
        """Tokens of prompts that are read in a second; NaN if there were none."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds > 0 else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are generated in a second, without the first one of each prompt; NaN if there were no others."""
        return (self.new_tokens - self.num_prompts) / self.new_seconds if self.new_seconds > 0 else float("nan")


def checked_stop(function: str, stop: Any) -> tuple[str, ...]:
    """The stop strings that a caller gave."""
    given = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"{function}: stop must be a str, or a list of them; got {shown(stop)}")
    if "" in given:
        raise ValueError(f"{function}: stop must be no empty str; got {shown(stop)}")
    return tuple(given)


class CheckedOptions(NamedTuple):
    """`GenerationOptions` without `stop`, defaults filled in. `Chooser` checks the seed."""

    max_new_tokens: int
    rules: SamplingRules
    seed: int | None
    num_threads: int | None
    cache_dtype: DTypeLike | None

    def most_new(self, length: Any, max_length: int) -> Any:
        """How many tokens follow a prompt of `length` tokens, an int or an array of them, at most."""
        # The last token of a text is chosen by those before it, and takes no position itself.
        return np.minimum(self.max_new_tokens, max_length - length + 1)


def checked_options(function: str, options: GenerationOptions) -> CheckedOptions:
    """The options that a caller gave, or TypeError or ValueError."""
    given: dict[str, Any] = dict(options)
    most_new = checked_size(function, "max_new_tokens", given.pop("max_new_tokens", _MOST_NEW_TOKENS))
    seed, num_threads, cache_dtype = (given.pop(name, None) for name in ("seed", "num_threads", "cache_dtype"))
    if num_threads is not None:
        num_threads = checked_size(function, "num_threads", num_threads)
    rules = checked_rules(
        function,
        given.pop("temperature", 0.0),
        *(given.pop(name, None) for name in ("top_k", "top_p", "min_p", "repetition_penalty")),
    )
    for name in given:
        raise TypeError(f"{function}: got an unexpected keyword argument {shown(name)}")
    return CheckedOptions(most_new, rules, seed, num_threads, cache_dtype)


def checked_cache_dtype(function: str, dtype: DTypeLike | None, model_dtype: np.dtype[Any]) -> str | None:
    """The name of the dtype of caches that a caller gave, or TypeError. None stands for that of the model."""
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


class TokenRun:
    """New tokens for prompts, step by step. Iterable once.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    model : Model
    prompts : list of B lists of int
        Of which `Model.check_sequences` has found nothing wrong.
    end_tokens : set of int
        Each of them ends its sequence, as its last token.
    options : GenerationOptions
        Without `stop`.
    """

    def __init__(
        self,
        function: str,
        model: Model,
        prompts: list[list[int]],
        end_tokens: frozenset[int],
        options: GenerationOptions,
    ) -> None:
        checked = checked_options(function, options)
        batch = len(prompts)
        self._function = function
        self._lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        self._tokens = np.zeros((batch, int(self._lengths.max())), np.int64)
        for row, prompt in zip(self._tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        self._choose = Chooser(
            function, checked.rules, checked.seed, self._tokens, self._lengths, model.config.vocab_size
        )
        self._ends = np.array(sorted(end_tokens), np.int64)
        self._most_new = checked.most_new(self._lengths, model.max_length)
        longest = self._tokens.shape[1]
        cache_dtype = checked_cache_dtype(function, checked.cache_dtype, model.dtype)
        capacity = min(longest + _decoding.FIRST_ROOM, longest + int(self._most_new.max()) - 1)
        with in_the_name_of(function):
            self._room = model.room(batch, capacity, cache_dtype)
        self._steps = model.steps(self._room, checked.num_threads)
        self._going = np.ones(batch, bool)
        self.statistics = GenerationStatistics(batch, int(self._lengths.sum()), 0, 0.0, 0.0)

    def end(self, sequence: int) -> None:
        """Let no token follow the last one of a sequence."""
        self._going[sequence] = False

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Tokens [B], and which sequences they belong to, bool [B]: the others have ended."""
        going, num_steps, seconds = self._going, 0, [0.0, 0.0]
        most = int(self._most_new.max())
        steps = _decoding.decode(self._steps, self._room, self._choose, self._tokens, self._lengths, going, most)
        while True:
            begin = perf_counter()
            with in_the_name_of(self._function):
                step = next(steps, None)
            if step is None:
                return
            num_steps += 1
            tokens, were_going = np.zeros_like(self._lengths), going.copy()
            tokens[step.sequences] = step.tokens
            going &= ~np.isin(tokens, self._ends) & (num_steps < self._most_new)
            seconds[num_steps > 1] += perf_counter() - begin
            self.statistics = self.statistics._replace(
                new_tokens=self.statistics.new_tokens + int(were_going.sum()),
                prompt_seconds=seconds[0],
                new_seconds=seconds[1],
            )
            yield tokens, were_going
