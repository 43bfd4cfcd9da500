"""A sandbox for templates of jinja2 with bounded work: what a template makes is counted, and refused beyond a limit.

In the sandbox of jinja2 a template can fill all memory (``'a' * 10**10``) or run without end. Here every operator, call
and filter is estimated before it runs. Its result is counted afterwards, and so are the steps of loops and all output.
Between two of these the processor time is compared with a limit.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# The size of all results, in characters of texts: some templates keep several copies of each message. A character takes
# up to 4 bytes, and an element of a list up to 100, so the values of a template for short messages take at most 120 MB.
_LEAST, _FOR_EACH_CHARACTER = 1 << 24, 32
_ELEMENT = 16

_STEP = 64  # the size of a call, a result or a step of a loop, without its text or elements

# Processor time of one rendering: templates of models take milliseconds.
_SECONDS = 10.0

_MOST_BITS = 1 << 12  # of an integer; products of longer ones would take ever longer

# Functions, methods, filters and operators whose results can be larger than all operands together: by a number; by the
# product of the largest text and a number or another text; and by widths in a text.
_PADDING = frozenset(("batch", "center", "ljust", "rjust", "slice", "to_bytes", "zfill"))
_REPEATING = frozenset(("*", "expandtabs", "indent", "join", "replace", "translate", "urlize", "wordwrap"))
_FORMATS = frozenset(("%", "format", "format_map", "strftime_now"))
_GROWING = _PADDING | _REPEATING | _FORMATS

# Methods and filters that make a list of the characters or the parts of a text.
_SPLITTING = frozenset(("groupby", "list", "rsplit", "sort", "split", "splitlines", "unique"))

# Functions, methods and filters whose time can grow with the product of two texts, or with the square of one.
_PRODUCTS = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"))
_SQUARES = frozenset(("pprint", "striptags", "urlize", "wordwrap"))

_FIELD = re.compile(r"%[^a-zA-Z%]*|\{[^}]*\}")  # of a format, with its width
_WIDTH = re.compile(r"\d{1,18}")
_WIDTH_OF_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^}]*\{")


class _Counted(NodeTransformer):  # type: ignore[misc]
    """Insert calls that count the steps of loops, and results that come from no call."""

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        text = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        node.iter = _call("counted", node.iter, nodes.Const(text))
        return node

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        node.nodes = [_call("made", part) for part in node.nodes]
        return _call("made", node)

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: Any) -> Any:
        self.generic_visit(node)
        for operand in node.ops:  # each is computed when the ones before it are compared
            operand.expr = _call("timed", operand.expr)
        return _call("timed", node)

    def visit_Test(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("timed", node)

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("made", node) if node.items else node

    visit_Dict = visit_List

    def visit_Tuple(self, node: Any) -> Any:
        return self.visit_List(node) if node.ctx == "load" else node


def _call(method: str, *arguments: Any) -> Any:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None)


class _Namespace(Namespace):  # type: ignore[misc]
    """Variables of a template. They have no text: one that holds another twice would double it."""

    def __repr__(self) -> str:
        raise ValueError("a namespace cannot become text")


class BoundedEnvironment(ImmutableSandboxedEnvironment):  # type: ignore[misc]
    """The sandbox with limits. `allow` gives them to the calling thread, for one rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))  # with results larger than each operand
    filters: dict[str, Callable[..., Any]]

    def __init__(self, **options: Any) -> None:
        self._of_thread = threading.local()
        super().__init__(**options, finalize=self.made)
        self.globals |= {"range": self._range, "namespace": _Namespace}
        del self.globals["lipsum"]  # a long text of no use

    def allow(self, num_characters: int) -> None:
        """Let the thread make as much as a template needs for messages of so many characters."""
        self._of_thread.most = self._of_thread.left = _LEAST + _FOR_EACH_CHARACTER * num_characters
        self._of_thread.end = time.thread_time() + _SECONDS
        self._of_thread.sizes = {}  # of containers by their ids, with the containers, so that ids remain

    def limit_filters(self) -> None:
        """Limit all filters, after the last one is set."""
        self.filters = {name: self._limited(name, function) for name, function in self.filters.items()}

    def made(self, value: Any) -> Any:
        """Count a result, and return it."""
        size = _STEP
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, list | tuple | dict):
            self.check(self._size(value))
            size += len(value) * _ELEMENT
        elif isinstance(value, int):
            self._check_bits(value.bit_length())
        elif isinstance(value, Iterator):
            value = self.counted(value, 0)
        self._spend(size)
        return value

    def timed(self, value: Any) -> Any:
        """Count a step that makes nothing, and return its result."""
        self._spend(_STEP)
        return value

    def counted(self, iterable: Iterable[Any], text: int) -> Iterator[Any]:
        """Yield the elements of a loop whose steps write `text` characters of the template."""
        for element in iterable:
            self._spend(_STEP + text)
            yield element

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() * abs(right) if abs(left) > 1 else 0)
        elif operator in _GROWING:
            self.check(self._most(operator, left, right))
        return self.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro."""
        if getattr(function, "__self__", None) is self:  # range, or a call that `_Counted` inserted: they count
            return function(*args)
        method = getattr(function, "__wrapped__", function)  # the sandbox has its own str.format
        self._check_call(getattr(method, "__name__", ""), getattr(method, "__self__", None), *args, *kwargs.values())
        return self.made(super().call(context, function, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        template = _Counted().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template.set_lineno(1)

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if name == "sum" and not all(isinstance(each, int | float) for each in (*args[3:], kwargs.get("start", 0))):
                raise ValueError("start of sum must be a number")  # lists would be copied for each element
            self._check_call(name, *args, *kwargs.values())
            return self.made(function(*args, **kwargs))

        return limited

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._spend(len(numbers) * _ELEMENT)
        return numbers

    def _spend(self, size: int) -> None:
        self._of_thread.left -= size
        self.check(0)

    def _check_bits(self, count: int) -> None:
        if count > _MOST_BITS:
            raise ValueError(f"integers must have at most {_MOST_BITS} bits")

    def _check_call(self, name: str, *operands: Any) -> None:
        """Refuse a call whose result or time could be too large."""
        if name in _GROWING:
            self.check(self._most(name, *operands))
        if name in _SPLITTING:
            self.check(_ELEMENT * max(len(each) if isinstance(each, str) else 0 for each in (*operands, "")))
        if name in _PRODUCTS or name in _SQUARES:
            *_, second, first = sorted((1, 1, *map(self._size, operands)))
            self.check(first * (second if name in _PRODUCTS else first))

    def check(self, size: int) -> None:
        """Refuse a result of this size, before it is made, and work after the time is over."""
        if time.thread_time() > self._of_thread.end:
            raise ValueError(f"it must take at most {_SECONDS:g} s of processor time")
        if size > self._of_thread.left:
            raise ValueError(
                f"it must make at most {self._of_thread.most} characters for these messages, where an element of a "
                f"list counts as {_ELEMENT}"
            )

    def _most(self, name: str, *operands: Any) -> int:
        """Return a bound of the size of the result of a function, a method, a filter or an operator of `_GROWING`."""
        numbers = [abs(each) for each in operands if type(each) is int]
        texts = sorted((0, *(self._size(each) for each in operands if type(each) is not int)))
        if name in _PADDING:
            return sum((*texts, *(_ELEMENT * each for each in numbers)))
        if name in _REPEATING:
            return texts[-1] * max(1, *texts[:-1], *numbers)
        widths = [1, *texts[:-1]]
        for form in (each for each in operands if isinstance(each, str)):
            widths += map(int, _WIDTH.findall(" ".join(_FIELD.findall(form))))
            if _WIDTH_OF_ARGUMENT.search(form):
                widths += numbers + [abs(each) for each in _elements(operands[-1]) if type(each) is int]
        return texts[-1] * max(widths)

    def _size(self, value: Any) -> int:
        """Return the characters and elements of a value, those of its elements included."""
        if isinstance(value, str | bytes):
            return len(value)
        if type(value) is int:
            return value.bit_length() >> 3
        if not isinstance(value, list | tuple | dict):
            return 0
        sizes = self._of_thread.sizes
        if id(value) not in sizes:
            keys = value if isinstance(value, dict) else ()
            size = sum(_ELEMENT + self._size(each) for each in (*keys, *_elements(value)))
            sizes[id(value)] = value, size
        return int(sizes[id(value)][1])


def _elements(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


class _Generation(jinja2.ext.Extension):  # type: ignore[misc]
    """The block that marks answers of the model. It does not change the text."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 has it)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment() -> BoundedEnvironment:
    """Return an environment with the settings that transformers has for chat templates."""
    return BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
