"""The command ``serve``: models over HTTP."""

import argparse
import os
from pathlib import Path
from typing import Any

from ..functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS
from .errors import UserError, errors_of_files
from .shared_arguments import count

about = "models over HTTP, for clients of OpenAI, Cohere and Text Embeddings Inference"

_PREFIX = "MHA_NATIVE_SERVE_"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = _Options(parser)
    model = "a directory, a GGUF file, or a name of Hugging Face, with a name for clients; may be given repeatedly"
    add("--model", metavar="[NAME=]PATH", action="append", help=model)
    add("--host", metavar="HOST", default="127.0.0.1", help="default: %(default)s")
    add("--port", metavar="PORT", type=_port, default=8080, help="default: %(default)s; 0 takes a free one")
    add("--unix-socket", metavar="PATH", help="listen there instead of on a port, for the user of this process only")
    add("--api-key", metavar="KEY", action="append", help="that clients must send; may be given repeatedly")
    add("--api-key-file", metavar="FILE", help="with a key in each line")
    add("--cors-origin", metavar="URL", action="append", help="whose pages may read answers; may be given repeatedly")
    add("--max-body-bytes", metavar="N", type=count, default=2_000_000, help="of a request; default: %(default)s")
    add("--max-inputs", metavar="N", type=count, default=256, help="texts of a request; default: %(default)s")
    add("--max-waiting", metavar="N", type=count, default=512, help="requests that wait; default: %(default)s")
    tokens = "tokens of texts that wait; default: %(default)s"
    add("--max-waiting-tokens", metavar="N", type=count, default=262_144, help=tokens)
    add("--target-batch-ms", metavar="MS", type=_positive, default=50.0, help="time of a batch; default: %(default)s")
    timeout = "until an answer must be there; default: %(default)s"
    add("--request-timeout", metavar="SECONDS", type=_positive, default=60.0, help=timeout)
    grace = "for running requests after SIGTERM; default: %(default)s"
    add("--grace", metavar="SECONDS", type=_positive, default=30.0, help=grace)
    new = "of an answer without a limit of its own; default: %(default)s"
    add("--max-new-tokens", metavar="N", type=count, default=4096, help=new)
    accept = "tokens in the place of texts; default: %(default)s"
    add("--token-inputs", choices=("refuse", "accept"), default="refuse", help=accept)
    add("--threads", metavar="N", type=count, help="of the computation; default: those of the machine")
    add("--dtype", choices=LAYER_DTYPES, default="float32", help="what models compute in; default: %(default)s")
    stored = "storage of the weights of layers; default: as in quantized files, else as --dtype"
    add("--weight-dtype", choices=("float32", *WEIGHT_FORMATS), help=stored)
    add("--log-format", choices=("text", "json"), default="text", help="default: %(default)s")
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, default="info", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Return 0 if all requests have ended then, and 1 if some were ended."""
    if not options.model:
        options.usage_error(f"--model is required, or {_PREFIX}MODEL")
    models: dict[str, str] = {}
    for given in options.model:
        name, separator, path = given.partition("=")
        if not separator or not name or os.sep in name:
            name, path = Path(given).stem if given.endswith(".gguf") else Path(given).name or given, given
        if name in models:
            options.usage_error(f"--model: two models have the name {name}; give them names as in NAME=PATH")
        models[name] = path
    keys = list(options.api_key or ())
    if options.api_key_file is not None:
        with errors_of_files("read", options.api_key_file):
            lines = Path(options.api_key_file).read_text(encoding="utf-8").splitlines()
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise UserError(f"{options.api_key_file}: must hold a key at least")
    try:
        from ..server.config import Config
        from ..server.process import serve
    except ImportError as error:
        raise UserError(str(error)) from error
    config = Config(
        models,
        dtype=options.dtype,
        weight_dtype=options.weight_dtype,
        num_threads=options.threads,
        api_keys=tuple(keys),
        cors_origins=tuple(options.cors_origin or ()),
        max_body_bytes=options.max_body_bytes,
        max_inputs=options.max_inputs,
        max_waiting=options.max_waiting,
        max_waiting_tokens=options.max_waiting_tokens,
        target_seconds=options.target_batch_ms / 1000,
        request_timeout=options.request_timeout,
        max_new_tokens=options.max_new_tokens,
        token_inputs=options.token_inputs == "accept",
    )
    place = options.unix_socket or (options.host, options.port)
    try:
        return serve(config, place, options.grace, options.log_format, options.log_level)
    except (OSError, TypeError, ValueError, ImportError) as error:
        raise UserError(str(error)) from error


class _Options:
    """Adds options to a parser, each with an environment variable for its default."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def __call__(self, option: str, **arguments: Any) -> None:
        action = self._parser.add_argument(option, **arguments)
        given = os.environ.get(f"{_PREFIX}{action.dest.upper()}")
        if given is None:
            return
        values = given.split() if arguments.get("action") == "append" else given
        try:
            read = arguments.get("type", str)(values) if isinstance(values, str) else values
        except argparse.ArgumentTypeError as error:
            raise UserError(f"{_PREFIX}{action.dest.upper()}: {error}") from error
        if action.choices is not None and read not in action.choices:
            raise UserError(f"{_PREFIX}{action.dest.upper()}: must be one of {', '.join(action.choices)}; got {read}")
        action.default = read


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535; got {text!r}")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return number
