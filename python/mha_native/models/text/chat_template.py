"""The chat template of a model: turn messages into the text that the model reads, by jinja2."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ...functions.messages import listed, name_of_type, shown
from ...functions.needed_packages import pip_install

_LEAST_VERSION = (3, 1, 6)  # templates can leave the sandbox of older versions

# Special tokens that templates use, by their names in tokenizer_config.json.
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    """A template that runs in the sandbox of jinja2: it sees only the messages, and cannot read files.

    Messages name the file `path` of the template. `tokenizer_config` has the texts of the special tokens.
    """

    def __init__(self, path: Path, template: str | None, tokenizer_config: Mapping[str, Any]) -> None:
        self._path, self._template = path, template
        tokens = {name: tokenizer_config.get(name) for name in _TOKENS}
        texts = {name: token.get("content") if isinstance(token, Mapping) else token for name, token in tokens.items()}
        self._tokens = {name: text for name, text in texts.items() if isinstance(text, str)}
        self._compiled: Any = None

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        """Return the text of messages. ImportError without jinja2; ValueError without a template, or if it fails."""
        if self._template is None:
            raise ValueError(f"{self._path} has no chat template")
        given = {"add_generation_prompt": add_generation_prompt, "tools": None, "documents": None, **variables}
        try:  # a copy of plain values: a template must not change the arguments or reach their methods
            messages, given = json.loads(json.dumps([messages, given]))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"messages must hold what can be written as JSON: {error}") from error
        if self._compiled is None:
            self._compiled = self._in_sandbox(self._template)
        try:
            return str(self._compiled.render(messages=messages, **self._tokens, **given))
        except Exception as error:  # any error of a template, also one that it raises itself
            raise ValueError(f"{self._path}: the chat template failed: {_first_line(error)}") from error

    def _in_sandbox(self, template: str) -> Any:
        require_jinja()
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(jinja2.ext.Extension):  # type: ignore[misc]
            """The block that marks answers of the model. It does not change the text."""

            tags = {"generation"}  # noqa: RUF012  (as jinja2 has it)

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _time_now
        try:
            return environment.from_string(template)
        except Exception as error:  # a syntax error, or nested too deeply
            raise ValueError(f"{self._path}: the chat template is not valid: {_first_line(error)}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}


def require_jinja() -> None:
    """Raise ImportError unless jinja2 is installed, in a version with a safe sandbox."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed: {pip_install('jinja2', extra='chat')}") from error
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        command = pip_install(f"jinja2>={least}", extra="chat")
        raise ImportError(f"jinja2 {jinja2.__version__} is too old: {command}")


def checked_conversation(what: str, messages: Any) -> list[dict[str, Any]]:
    """Check the messages of one conversation, dicts with a role, and return copies."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"{what} must be a list of dicts with role and content; got {name_of_type(messages)}")
    if not messages:
        raise ValueError(f"{what} must have a message; got none")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"{what} must be dicts with role and content; got {name_of_type(message)} at {i}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"{what} must have a role, which is a str; got {shown(dict(message))} at {i}")
    return [dict(message) for message in messages]


def checked_conversations(what: str, messages: Any) -> tuple[bool, list[list[dict[str, Any]]]]:
    """Return whether there is a single conversation, and the messages of each conversation."""
    is_many = isinstance(messages, Sequence) and not isinstance(messages, (str, bytes))
    if is_many and messages and all(isinstance(one, Sequence) and not isinstance(one, str) for one in messages):
        return False, [checked_conversation(what, one) for one in messages]
    return True, [checked_conversation(what, messages)]


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise ValueError(message)


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)


def _first_line(error: Exception) -> str:
    return listed(str(error).splitlines()[:1]) or type(error).__name__
