"""Arguments that several commands have."""

import argparse
from typing import Any

from ..functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS

_GENERATION = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "seed")


def add_model(parser: argparse.ArgumentParser, further: str = "") -> None:
    """Add the model and its formats. `further` names other places than a directory, for the help."""
    parser.add_argument(
        "--model",
        metavar="DIR",
        required=True,
        help=f"with config.json, model.safetensors, tokenizer.json; {further}or the name of a model of Hugging Face",
    )
    parser.add_argument(
        "--dtype",
        choices=LAYER_DTYPES,
        default="float32",
        help="what the model is computed in; default: %(default)s",
    )
    parser.add_argument(
        "--weight-dtype",
        choices=("float32", *WEIGHT_FORMATS),
        help="with float32, what the weights of the layers are stored as; default: as --dtype",
    )


def formats_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the formats of the model by the names of `from_pretrained`."""
    return {"dtype": options.dtype, "weight_dtype": options.weight_dtype}


def add_generation(parser: argparse.ArgumentParser, most_new: int) -> None:
    """Add the length of the texts of a language model, and the choice of tokens; `most_new` tokens by default."""
    parser.add_argument("--max-new-tokens", metavar="N", type=count, default=most_new, help="default: %(default)s")
    parser.add_argument("--temperature", metavar="T", type=float, help="0, the default, takes the most probable token")
    parser.add_argument("--top-k", metavar="K", type=count, help="draw among the K most probable tokens")
    parser.add_argument("--top-p", metavar="P", type=float, help="draw among the fewest tokens that reach P together")
    share = "draw among tokens with at least P times the probability of the most probable one"
    parser.add_argument("--min-p", metavar="P", type=float, help=share)
    penalty = "what the logits of tokens that are there already are divided by"
    parser.add_argument("--repetition-penalty", metavar="X", type=float, help=penalty)
    parser.add_argument("--stop", metavar="TEXT", action="append", help="end before this text; may be given repeatedly")
    parser.add_argument("--seed", metavar="N", type=int, help="of draws; default: another one each time")
    length = "most tokens of a prompt and its continuation; default: as many as the model was trained with"
    parser.add_argument("--max-length", metavar="N", type=count, help=length)


def generation_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `CausalLM.generate` that the command line has."""
    given = {name: getattr(options, name) for name in _GENERATION}
    return {name: value for name, value in given.items() if value is not None}


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
    number = int(text)
    if number < 1:
        raise ValueError
    return number
