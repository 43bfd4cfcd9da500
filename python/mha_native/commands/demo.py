"""The command ``demo``: self-attention over the words of a text, shown, checked and timed."""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core, reference
from ..functions.positions import sinusoidal_positions
from ..functions.statistics import attention_statistics
from ..layers.multi_head_attention import MultiHeadAttention
from .errors import UserError, errors_of_files
from .output import refuse_to_replace
from .show_heads import MAX_DRAWN, draw_heads, print_heads

about = "self-attention over the words of a text: what each word attends to in each head, the error, the time"

EMBED_DIM = 512
NUM_HEADS = 8

MAX_WORDS = 1024  # longer texts are cut: the weights of all heads then take 32 MB

Array = NDArray[np.float32]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", default="A dog ate the food because it was hungry", help='default: "%(default)s"')
    source.add_argument("--file", metavar="PATH", help="take the text from a UTF-8 file")
    parser.add_argument("--plot", metavar="PATH", help="draw the weights of each head, to heads.png for example")
    parser.add_argument("--seed", type=int, default=0, help="of embeddings and weights; default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Print the demonstration, and draw the weights to the file `plot`. Errors come before any output."""
    if options.file is not None and options.plot is not None:
        refuse_to_replace(options.file, options.plot, "--plot")
    text = options.text if options.file is None else read_text(options.file)
    seed, plot = options.seed, options.plot
    if seed < 0:
        raise UserError(f"--seed must not be negative; got {seed}")
    all_words = re.findall(r"\w+(?:['\u2019-]\w+)*", text)
    words = all_words[:MAX_WORDS]
    if not words:
        raise UserError("the text has no words")
    try:
        isa = _core.active_isa()
    except ValueError as error:  # MHA_NATIVE_ISA is not available on this machine
        raise UserError(str(error)) from error

    rng = np.random.default_rng(seed)
    x = embed(words, rng) + sinusoidal_positions(len(words), EMBED_DIM)
    layer = MultiHeadAttention(EMBED_DIM, NUM_HEADS, seed=seed)
    out, weights = layer(x, need_weights=True)
    if plot is not None:
        drawn = weights[:, :MAX_DRAWN, :MAX_DRAWN].reshape(2, NUM_HEADS // 2, *2 * [min(len(words), MAX_DRAWN)])
        draw_heads(words, drawn, [f"head {head + 1}" for head in range(NUM_HEADS)], plot)

    count = f"{len(words)} word{'s' * (len(words) > 1)}"
    if len(all_words) > len(words):
        count = f"the first {len(words):,} of {len(all_words):,} words"
    print(f"Multi-head self-attention over {count}: d_model {EMBED_DIM}, {NUM_HEADS} heads, float32")
    print(f"mha_native {_core.__version__} with {isa}, threads: up to {_core.num_threads()}")
    print()
    print("What each word attends to most, and how much. The layer is not trained, so it carries no meaning.")
    print_heads(words, weights)

    state = layer.state_dict()
    query, key, _ = numpy_heads(x, state)
    entropy = attention_statistics(query, key).entropy.mean(axis=-1)  # [H]
    print()
    print(
        f"Mean entropy, heads 1 to {NUM_HEADS}: {' '.join(f'{nats:.2f}' for nats in entropy)} nats, "
        f"at most log({len(words)}) = {np.log(len(words)):.2f}"
    )
    expected = reference.multi_head_attention(x, x, x, state, NUM_HEADS)
    print()
    print(
        f"Largest error against the float64 reference: {np.abs(out - expected).max():.1e}, "
        f"in results of up to {np.abs(expected).max():.1f}"
    )
    ours, numpys = time_in_turns([lambda: layer(x), lambda: numpy_layer(x, state)])
    print(
        f"Time: {in_words(ours)}; the same in NumPy {np.__version__}: {in_words(numpys)}, {numpys / ours:.1f} times as "
        "long (medians, in turns)"
    )
    if plot is not None:
        which = f"the first {MAX_DRAWN} words" if len(words) > MAX_DRAWN else "all words"
        print(f"Plot of {which}: {plot}")


def read_text(path: str) -> str:
    """Read a UTF-8 file."""
    try:
        with errors_of_files("read", path), Path(path).open(encoding="utf-8-sig") as lines:
            text = ""
            for line in lines:  # an interrupt does not end a read of a whole pipe that has just got data
                text += line
            return text
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: it is not UTF-8 text") from error


def embed(words: list[str], rng: np.random.Generator) -> Array:
    """Draw random embeddings [T, E]; equal words have equal embeddings."""
    vocabulary, index = np.unique([word.casefold() for word in words], return_inverse=True)
    table: Array = rng.standard_normal((len(vocabulary), EMBED_DIM), dtype=np.float32)
    return table[index]


def numpy_heads(x: Array, state: Mapping[str, Array]) -> Array:
    """Project query, key and value of each head: [3, H, T, D]."""
    length, width = x.shape
    projected = x @ state["in_proj_weight"].T + state["in_proj_bias"]
    return projected.reshape(length, 3, NUM_HEADS, width // NUM_HEADS).transpose(1, 2, 0, 3)


def numpy_layer(x: Array, state: Mapping[str, Array]) -> Array:
    """Compute the layer in plain NumPy, in float32."""
    length, width = x.shape
    q, k, v = numpy_heads(x, state)
    scores = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(width // NUM_HEADS))
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    heads: Array = (weights @ v).transpose(1, 0, 2).reshape(length, width)
    return heads @ state["out_proj.weight"].T + state["out_proj.bias"]


def time_in_turns(functions: list[Callable[[], Any]], turns: int = 6) -> list[float]:
    """Return the median seconds of each function. They run in turns, so that a busy machine slows all equally."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(turns):
        for function, taken in zip(functions, seconds, strict=True):
            time.sleep(0.05)  # the last function's idle threads may still spin
            function()
            end_of_turn = time.perf_counter() + 0.1
            for _ in range(10):
                start = time.perf_counter()
                function()
                taken.append(time.perf_counter() - start)
                if time.perf_counter() > end_of_turn:
                    break
    return [statistics.median(taken) for taken in seconds]


def in_words(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
