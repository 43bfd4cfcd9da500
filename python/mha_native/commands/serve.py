"""The command ``serve``: models over HTTP."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS
from ..functions.messages import listed, shown
from ..functions.needed_packages import pip_install
from .errors import UserError, errors_of_files
from .shared_arguments import count

if TYPE_CHECKING:
    from ..server.config import Config

about = "models over HTTP, for clients of OpenAI, Cohere and Text Embeddings Inference"

_PREFIX = "MHA_NATIVE_SERVE_"
_CONFIG = "config"


class _Option(NamedTuple):
    """An option of the command line, an environment variable, and a key of the file of `--config`."""

    flag: str
    about: str
    metavar: str | None = None
    read: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] | None = None
    is_repeated: bool = False

    @property
    def key(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return self.default is False

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        text = self.about
        if self.default not in (None, "") and not self.is_switch:
            text += f"; default: {self.default}"
        text += "; may be given repeatedly" if self.is_repeated else ""
        if self.is_switch:
            parser.add_argument(self.flag, action="store_true", default=None, help=text)
            return
        action = "append" if self.is_repeated else "store"
        kind, choices = self.read, self.choices
        parser.add_argument(self.flag, action=action, type=kind, choices=choices, metavar=self.metavar, help=text)

    def of_text(self, place: str, text: str) -> Any:
        """Return the value of a text; UserError, which names the `place`, if it breaks a rule."""
        if self.is_switch:
            if text.lower() not in ("true", "false", "1", "0"):
                raise UserError(f"{place}: must be true or false; got {text}")
            return text.lower() in ("true", "1")
        try:
            found = self.read(text)
        except argparse.ArgumentTypeError as error:
            raise UserError(f"{place}: {error}") from error
        if self.choices is not None and found not in self.choices:
            raise UserError(f"{place}: must be one of {', '.join(self.choices)}; got {text}")
        return found

    def of_file(self, place: str, value: Any) -> Any:
        """Return the value of an entry of a file."""
        if self.is_repeated:
            if not isinstance(value, list):
                raise UserError(f"{place}: must be a list; got {shown(value)}")
            return [self.of_text(place, str(each)) for each in value]
        if isinstance(value, (list, dict)) or (isinstance(value, bool) and not self.is_switch):
            raise UserError(f"{place}: must be a single value; got {shown(value)}")
        return self.of_text(place, str(value))


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535; got {text!r}")
    return number


def _real(text: str, *, has_zero: bool = False) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 < number < float("inf") or (has_zero and number == 0)):
        rule = "of at least 0" if has_zero else "above 0"
        raise argparse.ArgumentTypeError(f"must be a number {rule}; got {text!r}")
    return number


def _compatible(text: str) -> tuple[str, ...]:
    names = {"both": ("tei", "vllm"), "none": ()}.get(text, tuple(text.split(",")))
    if not all(name in ("tei", "vllm") for name in names):
        raise argparse.ArgumentTypeError(f"must be tei, vllm, both or none; got {text!r}")
    return names


def _delay(text: str) -> float:
    return _real(text, has_zero=True)


_LEVELS = ("debug", "info", "warning", "error")
_MODEL = "a directory, a GGUF file, or a name of Hugging Face, with a name for clients"
_STORED = "storage of the weights of layers; default: as in quantized files, else as --dtype"

OPTIONS = (
    _Option("--model", _MODEL, "[NAME=]PATH", is_repeated=True),
    _Option("--alias", "a further name of a model", "ALIAS=NAME", is_repeated=True),
    _Option("--any-model-name", "take the only model of the fitting kind for an unknown name", default=False),
    _Option("--host", "the address to listen on", "HOST", default="127.0.0.1"),
    _Option("--port", "the port; 0 takes a free one", "PORT", _port, 8080),
    _Option("--metrics-port", "serve /metrics on this port alone; 0 takes a free one", "PORT", _port),
    _Option("--unix-socket", "listen on this path instead of a port, for the user of this process only", "PATH"),
    _Option("--root-path", "the path of the server behind a proxy, such as /models", "PATH", default=""),
    _Option("--tls-certificate", "the certificate of the server and its issuers, in PEM", "FILE"),
    _Option("--tls-key", "the private key of the certificate, in PEM", "FILE"),
    _Option("--api-key", "a key that clients must send", "KEY", is_repeated=True),
    _Option("--api-key-file", "a file with a key in each line", "FILE"),
    _Option("--admin-key", "the key of requests that load, reload and unload models; default: no such requests", "KEY"),
    _Option("--cors-origin", "an origin whose pages may read answers", "URL", is_repeated=True),
    _Option("--max-body-bytes", "bytes of a request", "N", count, 2_000_000),
    _Option("--max-inputs", "texts of a request", "N", count, 256),
    _Option("--max-waiting", "requests that wait", "N", count, 512),
    _Option("--max-waiting-tokens", "tokens of texts that wait", "N", count, 262_144),
    _Option("--target-batch-ms", "time of a batch", "MS", _real, 50.0),
    _Option("--max-batch-tokens", "tokens of a batch of several texts; default: 2048", "N", count),
    _Option("--max-wait-ms", "time in which texts wait for others", "MS", _delay, 0.0),
    _Option("--request-timeout", "time until an answer must be whole", "SECONDS", _real, 60.0),
    _Option("--drain-delay", "time after SIGTERM in which new requests are still taken", "SECONDS", _delay, 0.0),
    _Option("--grace", "time for running requests after SIGTERM", "SECONDS", _real, 30.0),
    _Option("--max-new-tokens", "new tokens of an answer without a limit of its own", "N", count, 4096),
    _Option("--max-audio-bytes", "bytes of a request with a recording", "N", count, 26_214_400),
    _Option("--max-audio-seconds", "duration of a recording", "SECONDS", _real, 7200.0),
    _Option("--max-recordings", "requests with a recording at once", "N", count, 32),
    _Option("--audio-timeout", "time until a transcript must be whole", "SECONDS", _real, 600.0),
    _Option("--metrics-compat", "further names of metrics: tei, vllm, both or none", "NAMES", _compatible, "both"),
    _Option("--token-inputs", "tokens in the place of texts", default="refuse", choices=("refuse", "accept")),
    _Option("--threads", "threads of the computation; default: the processors of this process", "N", count),
    _Option("--dtype", "dtype of the computation", default="float32", choices=LAYER_DTYPES),
    _Option("--weight-dtype", _STORED, choices=("float32", *WEIGHT_FORMATS)),
    _Option("--keep-going", "serve the other models if one cannot be opened", default=False),
    _Option("--log-format", "format of the line for each request", default="text", choices=("text", "json")),
    _Option("--log-level", "lowest level of lines that are written", default="info", choices=_LEVELS),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        f"--{_CONFIG}", metavar="FILE", help="a file in TOML, with options by their names, and tables of models"
    )
    for option in OPTIONS:
        option.add_to(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Return 0 if all requests have ended then, and 1 if some were ended."""
    found = _values(options)
    if not found["models"]:
        options.usage_error(f"--model is required, or {_PREFIX}MODEL, or a table of models in the file of --config")
    if (found["tls_certificate"] is None) != (found["tls_key"] is None):
        raise UserError("--tls-certificate and --tls-key need each other")
    try:
        from ..server.process import serve
    except ImportError as error:
        raise UserError(str(error)) from error
    try:
        return serve(
            _config(found),
            found["unix_socket"] or (found["host"], found["port"]),
            found["grace"],
            found["log_format"],
            found["log_level"],
            drain_delay=found["drain_delay"],
            metrics_port=found["metrics_port"],
            tls=found["tls_certificate"] and (found["tls_certificate"], found["tls_key"]),
            reread=lambda: _config(_values(options)),
        )
    except (OSError, TypeError, ValueError, ImportError) as error:
        raise UserError(str(error)) from error


def _config(found: Mapping[str, Any]) -> "Config":
    """Return the configuration of options by their keys. TypeError or ValueError if one breaks a rule."""
    from ..server.config import Config, Model

    keys = list(found["api_key"] or ())
    if found["api_key_file"] is not None:
        with errors_of_files("read", found["api_key_file"]):
            lines = Path(found["api_key_file"]).read_text(encoding="utf-8").splitlines()
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise UserError(f"{found['api_key_file']}: must hold a key at least")
    return Config(
        {name: Model(**model) for name, model in found["models"].items()},
        dtype=found["dtype"],
        weight_dtype=found["weight_dtype"],
        num_threads=found["threads"],
        api_keys=tuple(keys),
        admin_key=found["admin_key"],
        aliases=found["aliases"],
        any_model_name=found["any_model_name"],
        cors_origins=tuple(found["cors_origin"] or ()),
        max_body_bytes=found["max_body_bytes"],
        max_inputs=found["max_inputs"],
        max_waiting=found["max_waiting"],
        max_waiting_tokens=found["max_waiting_tokens"],
        target_seconds=found["target_batch_ms"] / 1000,
        max_batch_tokens=found["max_batch_tokens"],
        max_wait_seconds=found["max_wait_ms"] / 1000,
        request_timeout=found["request_timeout"],
        max_new_tokens=found["max_new_tokens"],
        max_audio_bytes=found["max_audio_bytes"],
        max_audio_seconds=found["max_audio_seconds"],
        max_recordings=found["max_recordings"],
        audio_timeout=found["audio_timeout"],
        metrics_compat=found["metrics_compat"],
        token_inputs=found["token_inputs"] == "accept",
        keep_going=found["keep_going"],
        root_path=found["root_path"],
    )


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the value of each option by its key: the one of the command line, or else of the environment, or else of
    the file, or else the default. The models and their aliases are dicts."""
    path = getattr(options, _CONFIG) or os.environ.get(f"{_PREFIX}{_CONFIG.upper()}")
    given = {} if path is None else _read_file(path)
    models = {name: _table_of_model(path, name, table) for name, table in given.pop("models", {}).items()}
    aliases = given.pop("aliases", {})
    found: dict[str, Any] = {}
    for option in OPTIONS:
        key = option.key
        variable = f"{_PREFIX}{key.upper()}"
        text = os.environ.get(variable)
        found[key] = option.read(option.default) if isinstance(option.default, str) else option.default
        if key in given:
            found[key] = option.of_file(f"{path}: {key}", given[key])
        if text is not None:
            several = option.is_repeated
            found[key] = (
                [option.of_text(variable, one) for one in text.split()] if several else option.of_text(variable, text)
            )
        if getattr(options, key) is not None:
            found[key] = getattr(options, key)
    for text in found["model"] or ():
        name, separator, place = text.partition("=")
        if not separator or not name or os.sep in name:
            name, place = Path(text).stem if text.endswith(".gguf") else Path(text).name or text, text
        if name in models:
            raise UserError(f"--model: two models have the name {name}; give them names as in NAME=PATH")
        models[name] = {"path": place}
    for text in found["alias"] or ():
        alias, separator, name = text.partition("=")
        if not separator or not alias or not name:
            raise UserError(f"--alias: must be ALIAS=NAME; got {text}")
        aliases = {**aliases, alias: name}
    return found | {"models": models, "aliases": aliases}


def _read_file(path: str) -> dict[str, Any]:
    """Return the entries of a file in TOML. UserError for an unknown key."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise UserError(
                f"--config: {error.name} is not installed: {pip_install('tomli', extra='server')}"
            ) from error
    with errors_of_files("read", path):
        content = Path(path).read_bytes()
    try:
        given: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    _check_keys(path, given, [option.key for option in OPTIONS] + ["models", "aliases"])
    for table in ("models", "aliases"):
        if not isinstance(given.get(table, {}), dict):
            raise UserError(f"{path}: {table} must be a table, with the name of each model as a key")
    return given


def _table_of_model(path: Any, name: str, table: Any) -> dict[str, Any]:
    """Return the settings of a model in a file, which has its path or a table."""
    place = f"{path}: models.{name}"
    if isinstance(table, str):
        return {"path": table}
    if not isinstance(table, dict):
        raise UserError(f"{place}: must be a path, or a table with the key path; got {shown(table)}")
    _check_keys(place, table, ["path", "dtype", "weight_dtype", "kind", "prompt_name"])
    if "path" not in table:
        raise UserError(f"{place}: must have the key path")
    return table


def _check_keys(place: str, given: Mapping[str, Any], known: list[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key.replace("-", "_"), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known keys are {listed(sorted(known))}"
            raise UserError(f"{place}: the key {key} is not known; {hint}")
