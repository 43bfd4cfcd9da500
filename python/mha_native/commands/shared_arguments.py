"""Arguments that several commands have."""

import argparse
from typing import Any

from ..functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS
from ..functions.messages import shown


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


def one_source(parser: argparse.ArgumentParser, what: str) -> Any:
    """Return a group for the inputs of a command; exactly one of its arguments must be given."""
    return parser.add_argument_group(f"what to {what}, one of").add_mutually_exclusive_group(required=True)


def add_results(parser: argparse.ArgumentParser, of_what: str) -> None:
    """Add how many results are written, and where."""
    parser.add_argument("--top-k", metavar="K", type=count, help=f"only the best K {of_what}")
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
