"""The command ``chat``: a conversation with a language model on the terminal."""

import argparse
import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..models import CausalLM
from ..serving import Batcher, Request
from .errors import UserError, complain
from .input_texts import opened, texts_given
from .model_calls import errors_of_models, language_model, loaded
from .output import write_at_once
from .shared_arguments import add_generation, add_model, generation_of

about = "a conversation with a language model"

_MOST_NEW = 1024  # tokens of an answer, by default: a page or two, since the model ends its answers itself

# Room for 2,048 tokens at first. Room for the 8,192 tokens of SmolLM2 delays the first answer by 0.8 s (Zen 5), while
# the operating system gives 300 MB of memory.
_PAGE_SIZE, _FEWEST_PAGES = 64, 32

_HELP = """\
/reset  begin a new conversation
/exit   end, as Ctrl-D does
Ctrl-C  end an answer; the conversation goes on
"""

# Other programs have the second names.
_RESET, _EXIT = ("/reset", "/clear"), ("/exit", "/bye", "/quit")

_Messages = list[dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "a .gguf file; ")
    parser.add_argument("--system", metavar="TEXT", help="a message of the system before the conversation")
    add_generation(parser, _MOST_NEW)


def run(options: argparse.Namespace) -> None:
    """Answer each line of standard input, and remember the conversation until it ends."""
    start = [{"role": "system", "content": text} for text in texts_given([options.system] if options.system else [])]
    generation = generation_of(options)  # errors come before the model is read, and before the first line is
    model = language_model(options)
    loaded(lambda: model.apply_chat_template([*start, {"role": "user", "content": "Hello"}]))
    is_shown = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if is_shown:
        print(f"{options.model}: /help lists the commands", flush=True)
    messages = list(start)
    with contextlib.closing(_Answers(model, generation)) as answers:
        for text in _typed() if is_shown else _lines():
            word = text.strip()
            if word in _EXIT:
                break
            if word in _RESET:
                messages = list(start)
            elif re.fullmatch(r"/\w*|/\?", word):
                write_at_once(_HELP)
            elif word:
                messages = _continued(answers, messages, text)


def _lines() -> Iterator[str]:
    with opened([], "-") as lines:
        yield from lines


def _typed() -> Iterator[str]:
    """Yield lines of a terminal until its end, which is Ctrl-D. An interrupt drops a line."""
    with contextlib.suppress(ImportError):  # where Python has it, arrows edit the line and bring back earlier ones
        import readline  # noqa: F401
    while True:
        try:
            (line,) = texts_given([input("> ")])
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D ends the conversation")
        except UnicodeDecodeError as error:
            complain(f"a line must be in {error.encoding}; it was not sent")
        else:
            yield line


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let only the first SIGINT within the context raise KeyboardInterrupt, since a key may be held."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Answers:
    """A Batcher, which keeps the keys and values of the messages so far. It grows with the conversation."""

    def __init__(self, model: CausalLM, generation: dict[str, Any]) -> None:
        self.model, self.most_new = model, generation["max_new_tokens"]
        self._generation = generation
        self._num_pages = _FEWEST_PAGES
        self._batcher = self._new_batcher()

    def request(self, tokens: list[int]) -> Request:
        """Begin the answer to a conversation."""
        longest = min(len(tokens) + self.most_new, self.model.max_length + 1)
        if (needed := -(-longest // _PAGE_SIZE)) > self._num_pages:
            self.close()
            self._num_pages = max(needed, 2 * self._num_pages)
            self._batcher = self._new_batcher()
        request: Request = self._batcher.submit(tokens, **self._generation)
        return request

    def _new_batcher(self) -> Batcher:
        return Batcher(self.model, max_sequences=1, num_pages=self._num_pages, page_size=_PAGE_SIZE).start()

    def close(self) -> None:
        """End the thread of the Batcher."""
        self._batcher.close()


@_one_interrupt()
def _continued(answers: _Answers, messages: _Messages, text: str) -> _Messages:
    """Print the answer to a message as it comes, and return the conversation with both.

    An interrupt ends the answer, of which the beginning stays. A message without an answer does not stay.
    """
    asked = [*messages, {"role": "user", "content": text}]
    pieces: list[str] = []
    model = answers.model
    with errors_of_models():
        tokens = model.tokenize(model.apply_chat_template(asked), add_special_tokens=False)
        if (most := model.max_length) < len(tokens):
            complain(f"the conversation has {len(tokens):,} tokens, and the model {most:,}; /reset begins another one")
            return messages
        request = answers.request(tokens)
    try:
        with errors_of_models():
            for piece in request:
                pieces.append(piece)
                write_at_once(piece)
    except KeyboardInterrupt:
        request.cancel()
    except UserError:
        print(flush=True)
        raise
    print(flush=True)
    found = request.statistics
    if found.new_tokens > 1 and found.new_seconds > 0:
        read = f"{found.prompt_tokens - found.shared_tokens:,} tokens read in {found.first_token_seconds:.2f} s"
        complain(f"{read}, {found.new_tokens:,} generated, {1 / found.seconds_per_token:,.1f} tokens a second")
    if found.new_tokens == answers.most_new:
        complain(f"the answer has the {found.new_tokens:,} tokens of --max-new-tokens, and may go on")
    return [*asked, {"role": "assistant", "content": "".join(pieces)}] if pieces else messages
