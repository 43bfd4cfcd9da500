"""Arguments that several commands have."""

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS
from ..functions.messages import rename_arguments, shown
from ..models.generation.engine import GenerationOptions
from .errors import UserError

_GENERATION = (
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "stop",
    "seed",
)


def add_model(parser: argparse.ArgumentParser, further: str = "") -> None:
    """Add the model and its formats. `further` names other places than a directory, for the help."""
    parser.add_argument(
        "--model",
        metavar="DIR",
        required=True,
        help=f"a directory with config.json, model.safetensors, tokenizer.json; {further}or a name of Hugging Face",
    )
    parser.add_argument(
        "--dtype",
        choices=LAYER_DTYPES,
        default="float32",
        help="dtype of the computation; default: %(default)s",
    )
    parser.add_argument(
        "--weight-dtype",
        choices=("float32", *WEIGHT_FORMATS),
        help="with float32, storage of the weights of layers; default: as in quantized files, else as --dtype",
    )


def formats_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the formats of the model by the names of `from_pretrained`."""
    return {"dtype": options.dtype, "weight_dtype": options.weight_dtype}


def add_generation(parser: argparse.ArgumentParser, most_new: int) -> None:
    """Add the length of the texts of a language model, and the choice of tokens; `most_new` tokens by default."""
    most = "limit of new tokens; default: %(default)s"
    parser.add_argument("--max-new-tokens", metavar="N", type=count, default=most_new, help=most)
    parser.add_argument("--min-new-tokens", metavar="N", type=int, help="tokens before the text may end; default: 0")
    parser.add_argument("--temperature", metavar="T", type=float, help="0, the default, takes the most probable token")
    parser.add_argument("--top-k", metavar="K", type=count, help="draw among the K most probable tokens")
    parser.add_argument("--top-p", metavar="P", type=float, help="draw among the fewest tokens that reach P together")
    share = "draw among tokens with at least P times the probability of the most probable one"
    parser.add_argument("--min-p", metavar="P", type=float, help=share)
    penalty = "divide the logits of tokens that are already in the text"
    parser.add_argument("--repetition-penalty", metavar="X", type=float, help=penalty)
    often = "subtract this from the logit of a token each time that it is chosen, from -2 to 2"
    parser.add_argument("--frequency-penalty", metavar="X", type=float, help=often)
    once = "subtract this once from the logit of a token that was chosen, from -2 to 2"
    parser.add_argument("--presence-penalty", metavar="X", type=float, help=once)
    parser.add_argument("--stop", metavar="TEXT", action="append", help="end before this text; may be given repeatedly")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the sampling; default: another one each time")
    length = "limit of tokens of a prompt and its continuation; default: as many as the model was trained with"
    parser.add_argument("--max-length", metavar="N", type=count, help=length)


def generation_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `CausalLM.generate` that the command line has. UserError if one breaks a rule."""
    given = {name: getattr(options, name) for name in _GENERATION}
    given = {name: value for name, value in given.items() if value is not None}
    with names_of_options(*_GENERATION):
        GenerationOptions.checked(options.command, given, np.dtype(np.float32))
    return given


@contextlib.contextmanager
def names_of_options(*names: str) -> Iterator[None]:
    """Name arguments of functions as the options of the command line, in errors that the user can correct."""
    try:
        yield
    except (TypeError, ValueError, UserError) as error:
        rename_arguments(error, **{name: f"--{name.replace('_', '-')}" for name in names})
        raise UserError(str(error)) from error


def one_source(parser: argparse.ArgumentParser, what: str) -> Any:
    """Return a group for the inputs of a command; exactly one of its arguments must be given."""
    return parser.add_argument_group(f"what to {what}, one of").add_mutually_exclusive_group(required=True)


def add_results(parser: argparse.ArgumentParser, of_what: str, top_k: int | None = None) -> None:
    """Add how many results are written, `top_k` or all by default, and where."""
    best = f"only the best K {of_what}{'' if top_k is None else f'; default: {top_k}'}"
    parser.add_argument("--top-k", metavar="K", type=count, default=top_k, help=best)
    parser.add_argument("--output", metavar="PATH", help="out.jsonl; default: JSON lines to standard output")


def count(text: str) -> int:
    """Convert an argument to an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:  # argparse puts the name of the option before the message
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; got {shown(text)}")
    return number
