"""Generation of tokens one by one: embed the last token, run the decoder over its caches, choose the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._arrays import Tensor, to_numpy, widened
from .._messages import in_the_name_of, name_of_type, shown
from .._options import MODEL_OPTIONS, ModelOptions, core_options
from .._scalars import checked_integer, checked_real
from ..layers._constructor_arguments import checked_size
from ..layers.causal_decoder import CausalDecoder
from ..layers.decoder import Decoder
from ..layers.encoder import Encoder
from ..positions import sinusoidal_positions

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


# For how many tokens beside the prompts there is room at first. When it is full it doubles, so that a long generation
# moves each key about once, while every step reads all of them.
_FIRST_ROOM = 256


class GenerationStep(NamedTuple):
    """What `generate` yields: the next token of each sequence, and the logits that it was chosen by.

    Parameters
    ----------
    tokens : integer array [B]
        Of a sequence that has ended, its stop token again.
    logits : [B, V]
        Before temperature and all else; of a model in 16 bits in float32. Of a sequence that has ended, anything.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> mha.GenerationStep(np.array([1]), np.array([[0.5, 2.0]])).tokens
    array([1])
    """

    tokens: NDArray[np.int64]
    logits: NDArray[Any]


def generate(
    model: CausalDecoder | Decoder | Encoder,
    prompts: Tensor,
    embeddings: Tensor,
    *,
    max_new_tokens: int,
    prompt_lengths: Tensor | None = None,
    output_weight: Tensor | None = None,
    positions: Tensor | None = "sinusoidal",
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
    stop_token: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    num_threads: int | None = None,
    **options: Unpack[ModelOptions],
) -> Iterator[GenerationStep]:
    """Continue each prompt token by token: embed, add positions, read over the caches, choose by the logits, repeat.

    Parameters
    ----------
    model : CausalDecoder, Decoder or Encoder
        A `Decoder` reads a `memory`. An encoder is causal here, and so what a `CausalDecoder` is.
    prompts : integer array [B, T] or [T]
        Tokens to begin with, at least one of each sequence.
    embeddings : [V, E]
        The row of each token, of the dtype of the model.
    max_new_tokens : int
        How many tokens are generated at most.
    prompt_lengths : integer array [B], optional
        Of prompts of different length: what is behind them in `prompts` is padding, and not read.
    output_weight : [V, E], optional
        Logits are ``output_weight @ y`` for the last row y of the model. Default: `embeddings` (tied weights).
    positions : [P, E] or None, default "sinusoidal"
        What is added to the token at each position; None: nothing.
    memory : [B, S, Em] or [S, Em], optional
        Of a `Decoder`; projected once.
    memory_lengths : integer array [B], optional
        How much memory each sequence has; with a `memory` only.
    stop_token : int, optional
        It ends its sequence, and is the last token of it. When all have ended, nothing more is generated.
    temperature : float, default 0
        0 chooses the token with the largest logit, the first one of equals. Above, tokens are drawn with the
        probabilities ``softmax(logits / temperature)``.
    top_k : int, optional
        Draw among the `top_k` most probable tokens only.
    top_p : float, optional
        Draw among the fewest tokens whose probabilities reach `top_p` together, the most probable ones.
    seed : int, optional
        Of the draws. Each sequence has random numbers of its own, so that what it draws does not depend on the others.
    num_threads : int, optional
        Threads for each call of the model; default: `mha_native.num_threads`.
    **options
        Score options for each call of the model, those that do not depend on its tokens: from `window` to `sinks` of
        `scaled_dot_product_attention`.

    Yields
    ------
    step : GenerationStep
        ``tokens`` [B] and ``logits`` [B, V].

    Raises
    ------
    TypeError, ValueError
        Before any step, if an argument breaks a rule; in any, if the largest logit is NaN or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> model = mha.CausalDecoder(2, 32, 4, 64, norm_first=True, final_norm=True, seed=0)
    >>> embeddings = np.random.default_rng(1).standard_normal((50, 32), dtype=np.float32)
    >>> prompts = np.array([[3, 1, 4, 1], [5, 9, 0, 0]])
    >>> steps = mha.generate(model, prompts, embeddings, max_new_tokens=6, prompt_lengths=np.array([4, 2]))
    >>> np.stack([step.tokens for step in steps], axis=1).shape
    (2, 6)
    """
    name = "generate"
    if not isinstance(model, CausalDecoder | Decoder | Encoder):
        kind = name_of_type(model)
        raise TypeError(f"{name}: model must be a CausalDecoder, a Decoder or an Encoder; got {kind}")
    if isinstance(model, Decoder) != (memory is not None):
        raise ValueError(f"{name}: a Decoder needs a memory, and a CausalDecoder or an Encoder reads none")
    if memory is None and memory_lengths is not None:
        raise ValueError(f"{name}: memory_lengths are those of a memory, and there is none")
    of_model = core_options(name, options, MODEL_OPTIONS)
    table = _matrix(name, "embeddings", embeddings, model)
    output = table if output_weight is None else _matrix(name, "output_weight", output_weight, model)
    if len(output) != len(table):
        raise ValueError(f"{name}: output_weight must have the rows of embeddings, {len(table)}; got {len(output)}")
    tokens, lengths = _checked_prompts(prompts, prompt_lengths, len(table))
    batch, longest = tokens.shape
    most = longest + checked_size(name, "max_new_tokens", max_new_tokens) - 1  # tokens that the model reads
    memory = to_numpy(name, "memory", memory)
    if isinstance(memory, np.ndarray) and (held := len(memory) if memory.ndim == 3 else 1) != batch:
        raise ValueError(f"{name}: memory must have the batch size of the prompts, {batch}; got {held}")
    if isinstance(positions, str) and positions == "sinusoidal":
        places_of: Any = partial(sinusoidal_positions, embed_dim=model.embed_dim, dtype=table.dtype)
    else:
        of_all = np.zeros((1, model.embed_dim), table.dtype)
        if positions is not None and len(of_all := _matrix(name, "positions", positions, model)) < most:
            raise ValueError(f"{name}: positions must have a row for each of {most} tokens; got {len(of_all)}")

        def places_of(_: int) -> NDArray[Any]:
            return of_all

    if stop_token is not None:
        stop_token = checked_integer(name, "stop_token", stop_token, 0, len(table) - 1)
    if num_threads is not None:
        num_threads = checked_size(name, "num_threads", num_threads)
    choose = _Chooser(batch, temperature, top_k, top_p, seed)
    with in_the_name_of(name):
        room = _Room(model, batch, min(longest + _FIRST_ROOM, most), places_of)
        calls: Any = dict(of_model, is_causal=True, caches=room.caches, num_threads=num_threads)
        if isinstance(model, Decoder):
            of_memory = {"memory_lengths": memory_lengths, "num_threads": num_threads}
            calls["memory_caches"] = model.project_memory(memory, **of_memory)
        # A call of no tokens: what is wrong about the options is said here, and not in the first step.
        no_tokens = _core.convert(np.empty((batch, 0, model.embed_dim), table.dtype), model.dtype)
        model(no_tokens, new_lengths=np.zeros(batch, np.int64), **calls)

    def steps(new: NDArray[np.int64], counts: NDArray[np.int64]) -> Iterator[GenerationStep]:
        # `new` [B, T]: tokens that the decoder has not read. Sequence b has counts[b] of them, padding follows.
        read, going = np.zeros(batch, np.int64), np.ones(batch, bool)
        for _ in range(max_new_tokens):
            if (needed := int(read.max()) + new.shape[1]) > room.capacity:
                room.grow(min(max(needed, 2 * room.capacity), most))
            x = table[new] + room.places(read[:, None] + np.arange(new.shape[1]))
            with in_the_name_of(name):
                y = widened(model(_core.convert(x, model.dtype), new_lengths=counts, **calls))
            read = read + counts
            # One product for each sequence: a product of all of them may round differently for another batch.
            logits = np.stack([output @ y[b, max(count, 1) - 1] for b, count in enumerate(counts)])
            chosen = choose(logits, going)
            if stop_token is not None:
                chosen[~going] = stop_token
                going &= chosen != stop_token
            yield GenerationStep(chosen.copy(), logits)
            if not going.any():
                return
            new, counts = chosen[:, None], going.astype(np.int64)

    return steps(tokens, lengths)


class _Room:
    """Caches of a model, and what is added to a token at each position, for as many tokens as are needed so far.

    Parameters
    ----------
    model : CausalDecoder, Decoder or Encoder
    batch, capacity : int
        How many sequences, and for how many tokens of each there is room at first.
    places_of : function
        From a capacity to rows [P, E], one for each position; beyond the last one it is that one.
    """

    def __init__(
        self,
        model: CausalDecoder | Decoder | Encoder,
        batch: int,
        capacity: int,
        places_of: Callable[[int], NDArray[Any]],
    ) -> None:
        self._model, self._batch, self._places_of = model, batch, places_of
        self.capacity, self.caches, self._places = capacity, model.new_caches(batch, capacity), places_of(capacity)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens. The caches are replaced, one after another, in the same list."""
        for i, (layer, old) in enumerate(zip(self._model.layers, self.caches, strict=True)):
            filled = slice(old.longest)
            self.caches[i] = layer.new_cache(self._batch, capacity)
            self.caches[i].append(old.keys[:, :, filled], old.values[:, :, filled], old.lengths)
        self.capacity, self._places = capacity, self._places_of(capacity)

    def places(self, at: NDArray[np.int64]) -> NDArray[Any]:
        """What is added to tokens at the positions `at`. Those of padding may lie beyond the end."""
        rows: NDArray[Any] = self._places[np.minimum(at, len(self._places) - 1)]
        return rows


class _Chooser:
    """The choice of the next token of each sequence by its logits."""

    def __init__(
        self, batch: int, temperature: float, top_k: int | None, top_p: float | None, seed: int | None
    ) -> None:
        self.temperature = checked_real("generate", "temperature", temperature)
        if self.temperature < 0:
            raise ValueError(f"generate: temperature must be 0 or above; got {temperature}")
        self.top_p = None if top_p is None else checked_real("generate", "top_p", top_p)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"generate: top_p must be above 0 and at most 1; got {top_p}")
        self.top_k = None if top_k is None else checked_size("generate", "top_k", top_k)
        try:
            children = np.random.SeedSequence(seed).spawn(batch if self.temperature > 0 else 0)
        except Exception as error:
            kind = ValueError if isinstance(seed, int) else TypeError
            raise kind(f"generate: seed must be an integer of at least 0, or None; got {shown(seed)}") from error
        self.generators = [np.random.default_rng(child) for child in children]

    def __call__(self, logits: NDArray[Any], going: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Logits [B, V] to tokens [B]. The token of a sequence that is no longer `going` has no meaning."""
        largest = logits.max(-1)  # NaN if the row has one
        for b in np.flatnonzero(going & ~np.isfinite(largest)):
            raise ValueError(f"generate: the largest logit of sequence {b} is {largest[b]}")
        if self.temperature == 0:
            return np.asarray(logits.argmax(-1), np.int64)
        return np.array([self._draw(*each) for each in zip(logits, self.generators, strict=True)], np.int64)

    def _draw(self, logits: NDArray[Any], rng: np.random.Generator) -> int:
        order = np.argsort(-logits, kind="stable")[: self.top_k]  # the most probable ones first
        differences = logits[order].astype(np.float64) - logits[order[0]]  # 0 of the largest, however it is divided
        with np.errstate(over="ignore"):  # by a tiny temperature, to minus infinity
            probabilities = np.exp(differences / self.temperature)
        if self.top_p is not None:
            reached = np.cumsum(probabilities) / probabilities.sum()
            probabilities = probabilities[: np.searchsorted(reached, self.top_p) + 1]
        sums = np.cumsum(probabilities)
        drawn = np.searchsorted(sums[:-1], rng.random() * sums[-1], side="right")
        return int(order[drawn])


def _matrix(name: str, argument: str, matrix: Tensor, model: CausalDecoder | Decoder | Encoder) -> NDArray[Any]:
    array: Any = to_numpy(name, argument, matrix)
    is_array, dtype = isinstance(array, np.ndarray), _core.dtype_name(model.dtype)
    given = _core.dtype_name(array.dtype) if is_array else getattr(array, "dtype", name_of_type(array))
    if not is_array or given != dtype:
        raise TypeError(f"{name}: {argument} must be an array of {dtype}, as the model is; got {given}")
    if array.ndim != 2 or array.shape[1] != model.embed_dim or not len(array):
        raise ValueError(f"{name}: {argument} must have rows of {model.embed_dim}; got {list(array.shape)}")
    return widened(array)


def _as_array(argument: str, numbers: Tensor) -> NDArray[Any]:
    """An array of what may also be a list of integers, or of lists of them."""
    array = to_numpy("generate", argument, numbers)
    try:
        return np.asarray(array)
    except Exception as error:  # whatever the object raises
        raise TypeError(f"generate: {argument} must be integers; got {shown(numbers)}") from error


def _checked_prompts(
    prompts: Tensor, prompt_lengths: Tensor | None, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompts [B, T] with padding of 0, and how many tokens each has."""
    name = "generate"
    tokens = _as_array("prompts", prompts)
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2) or not tokens.size:
        raise ValueError(f"{name}: prompts must be integers [B, T]; got {tokens.dtype} {list(tokens.shape)}")
    tokens = np.atleast_2d(tokens).astype(np.int64)
    batch, longest = tokens.shape
    lengths = _as_array("prompt_lengths", longest if prompt_lengths is None else prompt_lengths)
    if lengths.dtype.kind not in "iu" or lengths.shape not in ((), (batch,)):
        raise ValueError(
            f"{name}: prompt_lengths must be integers [{batch}], one for each of prompts; "
            f"got {lengths.dtype} {list(lengths.shape)}"
        )
    lengths = np.broadcast_to(lengths, batch).astype(np.int64)
    if lengths.min() < 1 or lengths.max() > longest:
        raise ValueError(f"{name}: prompt_lengths must be from 1 to {longest}; got {lengths.tolist()}")
    tokens[np.arange(longest) >= lengths[:, None]] = 0
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ValueError(f"{name}: prompts must be from 0 to {vocabulary - 1}; got {tokens.min()} to {tokens.max()}")
    return tokens, lengths
