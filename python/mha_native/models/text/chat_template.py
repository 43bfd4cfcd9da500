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

# A conversation by which a template shows what it writes after an answer.
_QUESTION, _ANSWER = "question", "the answer to it"

# The most characters of a template. Templates of models have up to some 20,000, and this many take a second to compile.
_LONGEST = 1 << 17

_LONGEST_SEPARATOR = 16  # characters that tojson may put before each level, or between two values


class ChatTemplate:
    """A template that runs in the sandbox of jinja2: it sees only the messages, cannot read files, and has limits.

    Messages name the file `path` of the template. `tokenizer_config` has the texts of the special tokens.
    """

    def __init__(self, path: Path, template: str | None, tokenizer_config: Mapping[str, Any]) -> None:
        self._path, self._template = path, template
        tokens = {name: tokenizer_config.get(name) for name in _TOKENS}
        texts = {name: token.get("content") if isinstance(token, Mapping) else token for name, token in tokens.items()}
        self._tokens = {name: text for name, text in texts.items() if isinstance(text, str)}
        self._compiled: Any = None
        self._after_answers: str | None = None

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        """Return the text of messages. ImportError without jinja2; ValueError without a template, or if it fails."""
        if self._template is None:
            raise ValueError(f"{self._path} has no chat template")
        given = {"add_generation_prompt": add_generation_prompt, "tools": None, "documents": None, **variables}
        try:  # a copy of plain values: a template must not change the arguments or reach their methods
            written = json.dumps([messages, given])
            messages, given = json.loads(written)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"messages and variables must hold values of JSON: {error}") from error
        if self._compiled is None:
            self._compiled = self._in_sandbox(self._template)
        self._compiled.environment.allow(len(written))
        try:
            return str(self._compiled.render(messages=messages, **self._tokens, **given))
        except Exception as error:  # any error of a template, also one that it raises itself
            raise ValueError(f"{self._path}: the chat template failed: {_first_line(error)}") from error
        finally:
            self._compiled.environment.allow(0)  # keep no values of the messages

    def text_after_answers(self) -> str:
        """Return the text that the template writes after the answer that ends a conversation, without spaces before it.

        It is empty if the template does not show it.
        """
        if self._after_answers is None:
            messages = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
            try:
                _, found, after = self.render(messages, False, {}).rpartition(_ANSWER)
            except ValueError:  # it may refuse any conversation
                found = after = ""
            self._after_answers = after.lstrip() if found else ""
        return self._after_answers

    def _in_sandbox(self, template: str) -> Any:
        require_jinja()
        import jinja2

        from .bounded_template import make_environment

        environment = make_environment()
        environment.filters["tojson"] = jinja2.pass_environment(_to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = strftime_now
        environment.limit_filters()
        if len(template) > _LONGEST:
            raise ValueError(
                f"{self._path}: the chat template must have at most {_LONGEST} characters; got {len(template)}"
            )
        environment.allow(len(template))  # constants are computed with the template
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
    environment: Any,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of jinja2's own filter."""
    options: Any = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    if max(map(len, (*(separators or ()), indent if isinstance(indent, str) else ""))) > _LONGEST_SEPARATOR:
        raise ValueError(f"separators of tojson must have at most {_LONGEST_SEPARATOR} characters")
    if isinstance(indent, int) and indent > _LONGEST_SEPARATOR:
        raise ValueError(f"indent of tojson must be at most {_LONGEST_SEPARATOR}; got {shown(indent)}")
    parts, size = [], 0
    for part in json.JSONEncoder(**options).iterencode(value):  # with an indent, each element is a part
        parts.append(part)
        size += len(part)
        environment.check(size)
    return "".join(parts)


def _raise(message: str) -> None:
    raise ValueError(message)


def strftime_now(form: str) -> str:
    """Return the present time in the format `form`."""
    return datetime.now().strftime(form)


def _first_line(error: Exception) -> str:
    return listed(str(error).splitlines()[:1]) or type(error).__name__
