"""Generation over stacks of layers: embed the last token, run the layers over their caches, choose the next token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import Tensor, to_numpy, widened
from ...functions.messages import in_the_name_of, name_of_type, shown
from ...functions.options import MODEL_OPTIONS, ModelOptions, core_options
from ...functions.positions import sinusoidal_positions
from ...functions.runtime import threads_of_call
from ...functions.scalars import checked_integer
from ...layers._constructor_arguments import checked_size
from ...layers.causal_decoder import CausalDecoder
from ...layers.decoder import Decoder
from ...layers.encoder import Encoder
from .engine import MOST_NEW_TOKENS, CachedModel, Caches, NewTokens, generate_steps, read_padded
from .sampling import SamplingKeywords, SamplingOptions, TokenChoice, explains_sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class StackKeywords(SamplingKeywords, ModelOptions, total=False):
    """Keyword arguments of `generate` for the choice of tokens and for the layers."""


class GenerationStep(NamedTuple):
    """A step of `generate`: the next token of each sequence, and the logits that it was chosen by.

    Parameters
    ----------
    tokens : integer array [B]
        For a sequence that has ended, its stop token again.
    logits : [B, V]
        Before temperature and all other options; float32 for a model in 16 bits. Zeros for a sequence that has ended.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> mha.GenerationStep(np.array([1]), np.array([[0.5, 2.0]])).tokens
    array([1])
    """

    tokens: NDArray[np.int64]
    logits: NDArray[Any]


@explains_sampling
def generate(
    model: CausalDecoder | Decoder | Encoder,
    prompts: Tensor,
    embeddings: Tensor,
    *,
    max_new_tokens: int = MOST_NEW_TOKENS,
    prompt_lengths: Tensor | None = None,
    output_weight: Tensor | None = None,
    positions: Tensor | None = "sinusoidal",
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
    stop_token: int | None = None,
    num_threads: int | None = None,
    **options: Unpack[StackKeywords],
) -> Iterator[GenerationStep]:
    """Continue each prompt token by token: embed, add positions, read over the caches, choose by the logits, repeat.

    Parameters
    ----------
    model : CausalDecoder, Decoder or Encoder
        A `Decoder` reads a `memory`. An `Encoder` is called with `is_causal`, which makes it a `CausalDecoder`.
    prompts : integer array [B, T] or [T]
        Tokens to begin with, at least one for each sequence.
    embeddings : [V, E]
        The row of each token, of the dtype of the model.
    max_new_tokens : int, default 256
        The most tokens that are generated.
    prompt_lengths : integer array [B], optional
        The lengths of prompts of different length. Their padding, after the prompts, is not read.
    output_weight : [V, E], optional
        Logits are ``output_weight @ y`` for the last row y of the model. Default: `embeddings` (tied weights).
    positions : [P, E] or None, default "sinusoidal"
        The vectors that are added to tokens by their positions; None adds nothing.
    memory : [B, S, Em] or [S, Em], optional
        The memory of a `Decoder`, projected once.
    memory_lengths : integer array [B], optional
        Rows of the memory of each sequence; with a `memory` only.
    stop_token : int, optional
        Ends its sequence, as its last token. Generation stops when all sequences have ended.
    num_threads : int, optional
        Threads for each call of the model; default: `mha_native.num_threads`.
    {sampling}
    **options
        Score options for each call of the model: `window` to `sinks` of `scaled_dot_product_attention`, which do not
        depend on tokens.

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
    of_choice = {option: value for option, value in options.items() if option in SamplingKeywords.__optional_keys__}
    rest = {option: value for option, value in options.items() if option not in of_choice}
    of_model = core_options(name, rest, MODEL_OPTIONS)
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
    added: NDArray[Any] | None = None  # None for sinusoidal ones, as many as there is room for
    if not (isinstance(positions, str) and positions == "sinusoidal"):
        added = np.zeros((1, model.embed_dim), table.dtype)
        if positions is not None and len(added := _matrix(name, "positions", positions, model)) < most:
            raise ValueError(f"{name}: positions must have a row for each of {most} tokens; got {len(added)}")
    if stop_token is not None:
        stop_token = checked_integer(name, "stop_token", stop_token, 0, len(table) - 1)
    num_threads = threads_of_call(name, num_threads)
    sampling = SamplingOptions.checked(name, of_choice, len(table), max_new_tokens)
    sequences = [prompt[:length].tolist() for prompt, length in zip(tokens, lengths, strict=True)]
    of_all = len(table), max_new_tokens, frozenset([] if stop_token is None else [stop_token])
    choices = [TokenChoice(name, sampling, prompt, *of_all, b) for b, prompt in enumerate(sequences)]
    calls: Any = dict(of_model, is_causal=True, num_threads=num_threads)
    sinusoids = np.empty((0, model.embed_dim), table.dtype)

    def read(new: NewTokens, caches: list[Any]) -> NDArray[Any]:
        nonlocal sinusoids
        rows = added
        if rows is None:
            if len(sinusoids) < caches[0].capacity:
                sinusoids = sinusoidal_positions(caches[0].capacity, model.embed_dim, dtype=table.dtype)
            rows = sinusoids
        x = _core.convert(table[new.tokens] + rows[np.minimum(new.places, len(rows) - 1)], model.dtype)
        if isinstance(model, Decoder):
            return read_padded(model, x, new, batch, caches=caches, **calls)
        y: NDArray[Any] = model(x, cu_seqlens=new.cu_seqlens, sequences=new.slots, caches=caches, **calls)
        return y

    def logits(rows: NDArray[Any]) -> NDArray[Any]:
        # One product for each sequence: a product of all of them may round differently for another batch.
        return np.concatenate([output @ row for row in widened(rows)]).reshape(len(rows), -1)

    with in_the_name_of(name):
        if isinstance(model, Decoder):
            of_memory = {"memory_lengths": memory_lengths, "num_threads": num_threads}
            calls["memory_caches"] = model.project_memory(memory, **of_memory)
        caches = Caches(CachedModel(model.layers, read, logits), batch, longest, most)
        # A call without tokens raises errors of the options here, and not in the first step.
        no_tokens = _core.convert(np.empty((batch, 0, model.embed_dim), table.dtype), model.dtype)
        model(no_tokens, new_lengths=np.zeros(batch, np.int64), caches=caches.caches, **calls)

    def steps() -> Iterator[GenerationStep]:
        for sequences, tokens, logits in generate_steps(name, caches, choices):
            if len(sequences) == batch:
                yield GenerationStep(tokens.copy(), logits)
            else:  # the others have ended
                step = GenerationStep(np.full(batch, stop_token), np.zeros((batch, len(table)), logits.dtype))
                step.tokens[sequences], step.logits[sequences] = tokens, logits
                yield step

    return steps()


def _matrix(name: str, argument: str, matrix: Tensor, model: CausalDecoder | Decoder | Encoder) -> NDArray[Any]:
    array: Any = to_numpy(name, argument, matrix)
    is_array, dtype = isinstance(array, np.ndarray), _core.dtype_name(model.dtype)
    given = _core.dtype_name(array.dtype) if is_array else getattr(array, "dtype", name_of_type(array))
    if not is_array or given != dtype:
        raise TypeError(f"{name}: {argument} must be an array of {dtype}, as the model is; got {given}")
    if array.ndim != 2 or array.shape[1] != model.embed_dim or not len(array):
        raise ValueError(f"{name}: {argument} must have rows of {model.embed_dim}; got {list(array.shape)}")
    return widened(np.asarray(array))  # of a subclass, such as numpy.matrix, the numbers


def _as_array(argument: str, numbers: Tensor) -> NDArray[Any]:
    """Return the array of integers, which may be given as a list."""
    array = to_numpy("generate", argument, numbers)
    try:
        return np.asarray(array)
    except Exception as error:  # whatever the object raises
        raise TypeError(f"generate: {argument} must be integers; got {shown(numbers)}") from error


def _checked_prompts(
    prompts: Tensor, prompt_lengths: Tensor | None, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return prompts [B, T] with padding of 0, and their lengths [B]."""
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
