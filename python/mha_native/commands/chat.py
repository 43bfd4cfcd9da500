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
from ..serving import Batcher
from .errors import UserError, complain
from .input_texts import opened, texts_given
from .model_calls import errors_of_models, language_model, loaded
from .output import write_at_once
from .shared_arguments import add_generation, add_model, generation_of

about = "a conversation with a language model"

_MOST_NEW = 1024  # tokens of an answer, by default: a page or two, since the model ends its answers itself

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
    with Batcher(model, max_sequences=1) as batcher:  # which keeps the keys and values of the messages so far
        for text in _typed() if is_shown else _lines():
            word = text.strip()
            if word in _EXIT:
                break
            if word in _RESET:
                messages = list(start)
            elif re.fullmatch(r"/\w*|/\?", word):
                write_at_once(_HELP)
            elif word:
                messages = _continued(model, batcher, messages, text, generation)


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


@_one_interrupt()
def _continued(
    model: CausalLM, batcher: Batcher, messages: _Messages, text: str, generation: dict[str, Any]
) -> _Messages:
    """Print the answer to a message as it comes, and return the conversation with both.

    An interrupt ends the answer, of which the beginning stays. A message without an answer does not stay.
    """
    asked = [*messages, {"role": "user", "content": text}]
    pieces: list[str] = []
    with errors_of_models():
        tokens = model.tokenize(model.apply_chat_template(asked), add_special_tokens=False)
        if (most := model.max_length) < len(tokens):
            complain(f"the conversation has {len(tokens):,} tokens, and the model {most:,}; /reset begins another one")
            return messages
        request = batcher.submit(tokens, **generation)
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
    if found.new_tokens == generation["max_new_tokens"]:
        complain(f"the answer has the {found.new_tokens:,} tokens of --max-new-tokens, and may go on")
    return [*asked, {"role": "assistant", "content": "".join(pieces)}] if pieces else messages
