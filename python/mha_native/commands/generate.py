"""The command ``generate``: a language model continues a prompt, or the lines of a file."""

import argparse
import contextlib
import json
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..functions.messages import rename_arguments
from ..models import CausalLM
from ..models.generation.engine import GenerationOptions
from ..serving import Batcher, Request
from .errors import UserError, complain
from .input_texts import objects, opened, text_in, texts_given
from .model_calls import answers, errors_of_models, loaded
from .output import check_lines_output, lines_to, refuse_to_replace_source, report
from .shared_arguments import add_model, count, formats_of, one_source

about = "text of a language model that continues prompts, or answers them"

_GENERATION = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "seed")

# Number of lines of a file that are continued together: each step reads the weights once for all of them. Each line of
# such a group draws its own random numbers, prompts and conversations separately.
_TOGETHER = 8

# Lines that are read before the text of the first one of them is written.
_MOST_AHEAD = 256

_Object = dict[str, Any]  # prompt or messages, and the other entries of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "a .gguf file; ")
    source = one_source(parser, "continue")
    source.add_argument("--prompt", metavar="TEXT", help="a prompt; the text is printed as it comes")
    lines = "a prompt in each line, in UTF-8; in a file .jsonl a JSON object: prompt, or messages"
    source.add_argument("--file", metavar="FILE", help=f"{lines}; - reads lines of standard input")
    parser.add_argument("--chat", action="store_true", help="answer prompts, by the chat template of the model")
    parser.add_argument("--max-new-tokens", metavar="N", type=count, help="default: 256")
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
    output = "with --file: out.jsonl; default: JSON lines to standard output"
    parser.add_argument("--output", metavar="PATH", help=output)


def run(options: argparse.Namespace) -> None:
    with _names_of_options(*_GENERATION):  # before the model is read
        GenerationOptions.checked("generate", _generation(options), np.dtype(np.float32))
    if options.file is not None:
        _continue_file(options)
    elif options.output is not None:
        options.usage_error("--output needs --file")
    else:
        _continue_prompt(options)


def _continue_prompt(options: argparse.Namespace) -> None:
    """Print how the model continues the prompt, or answers it, as it comes. Errors come before any output."""
    (prompt,) = texts_given([options.prompt])
    model = _load(options)
    with errors_of_models():
        given: Any = [{"role": "user", "content": prompt}] if options.chat else prompt
        pieces = (model.chat if options.chat else model.generate)(given, stream=True, **_generation(options))
    try:
        with errors_of_models():
            for piece in pieces:
                sys.stdout.write(_encodable(piece))
                sys.stdout.flush()
    except (KeyboardInterrupt, UserError):
        _end_line(model)
        raise
    _end_line(model)


def _continue_file(options: argparse.Namespace) -> None:
    """Write how the model continues, or answers, each line of the file. A failure leaves the output as it was."""
    check_lines_output(options.output)
    refuse_to_replace_source(options.file, options.output)
    with opened([], options.file) as source:
        model = _load(options)
        has_objects = options.file.endswith(".jsonl")
        lines = objects(source, _checked) if has_objects else ({"prompt": line} for line in source)
        inputs = (_as_messages(line) if options.chat else line for line in lines)
        batcher = Batcher(model, max_sequences=_TOGETHER)
        counts = Counter[str]()

        def continued(inputs: Iterable[_Object]) -> Iterator[list[str]]:
            for request in _in_order(batcher, _submitted(batcher, model, inputs, _generation(options))):
                yield [request.result()]
                counts["read"] += request.statistics.prompt_tokens
                counts["new"] += request.statistics.new_tokens

        with lines_to(options.output) as (write, progress):
            for (given,), (text,) in answers(continued, inputs, source, progress):
                write(f"{json.dumps(given | {'text': text})}\n")
        report(options.output, f"{source.count:,} texts")
    if counts["new"]:
        seconds = batcher.statistics.seconds
        speed = f"{counts['new'] / seconds:,.1f} tokens a second"
        complain(f"{counts['read']:,} tokens read and {counts['new']:,} generated in {seconds:.2f} s, {speed}")


def _submitted(
    batcher: Batcher, model: CausalLM, inputs: Iterable[_Object], options: dict[str, Any]
) -> Iterator[Request]:
    """Submit each prompt and each conversation when its request is asked for."""
    places = Counter[bool]()
    for number, given in enumerate(inputs):
        if number % _TOGETHER == 0:
            places.clear()
        is_chat = "messages" in given
        prompt = given.get("prompt")
        if is_chat:
            prompt = model.tokenize(model.apply_chat_template(given["messages"]), add_special_tokens=False)
        yield batcher.submit(prompt, index=places[is_chat], **options)
        places[is_chat] += 1


def _in_order(batcher: Batcher, requests: Iterator[Request]) -> Iterator[Request]:
    """Yield requests in their order when they have ended, while the ones after them go on."""
    pending, is_more = deque[Request](), True
    while True:
        while is_more and len(pending) < _MOST_AHEAD and sum(not each.done for each in pending) < _TOGETHER:
            if is_more := (request := next(requests, None)) is not None:
                pending.append(request)
        if not pending:
            return
        if pending[0].done:
            yield pending.popleft()
        else:
            batcher.run_step()


def _load(options: argparse.Namespace) -> CausalLM:
    formats = formats_of(options)
    if options.max_length is None:
        return loaded(lambda: CausalLM.from_pretrained(options.model, **formats))
    with _names_of_options("max_length"):
        return loaded(lambda: CausalLM.from_pretrained(options.model, max_length=options.max_length, **formats))


@contextlib.contextmanager
def _names_of_options(*names: str) -> Iterator[None]:
    """Name arguments of functions as the options of the command line, in errors that the user can correct."""
    try:
        yield
    except (TypeError, ValueError, UserError) as error:
        rename_arguments(error, **{name: f"--{name.replace('_', '-')}" for name in names})
        raise UserError(str(error)) from error


def _generation(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `CausalLM.generate` that the command line has."""
    given = {name: getattr(options, name) for name in _GENERATION}
    return {name: value for name, value in given.items() if value is not None}


def _checked(value: _Object) -> _Object:
    if ("prompt" in value) == ("messages" in value):
        raise UserError("it must have a prompt or messages, one of them")
    if "prompt" in value:
        text_in(value, "prompt")
    elif not isinstance(value["messages"], list):
        raise UserError(f"messages must be a list; got {type(value['messages']).__name__}")
    return value


def _as_messages(value: _Object) -> _Object:
    """Return a prompt as the first message of a conversation."""
    if "messages" in value:
        return value
    rest = {name: given for name, given in value.items() if name != "prompt"}
    return {"messages": [{"role": "user", "content": value["prompt"]}], **rest}


def _encodable(text: str) -> str:
    """Return the text with question marks for characters that the terminal cannot show."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _end_line(model: CausalLM) -> None:
    """End the line of a text, and report the speed."""
    print(flush=True)
    statistics = model.statistics
    if statistics.new_tokens:
        speed = statistics.tokens_per_second
        words = "" if speed != speed else f", {speed:,.1f} tokens a second"
        complain(
            f"{statistics.prompt_tokens:,} tokens read in {statistics.prompt_seconds:.2f} s, "
            f"{statistics.new_tokens:,} generated{words}"
        )
