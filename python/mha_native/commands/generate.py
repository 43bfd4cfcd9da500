"""The command ``python -m mha_native generate``: a language model continues a prompt, or the lines of a file."""

import json
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..models import CausalLM
from ..serving import Batcher, Request
from .errors import UserError, complain
from .lines import (
    answers,
    check_lines_output,
    errors_of_models,
    lines_to,
    loaded,
    objects,
    opened,
    refuse_to_replace_source,
    report,
    text_in,
    texts_given,
)

# Lines of a file that are continued together: each step reads the weights once for all of them. Of as many lines each
# draws its own random numbers, prompts and conversations apart.
_TOGETHER = 8

# Lines that are read before the text of the first one of them is written.
_MOST_AHEAD = 256

_Object = dict[str, Any]  # with prompt or messages, and whatever else a line has


def run(directory: str, formats: Mapping[str, Any], prompt: str, is_chat: bool, options: Mapping[str, Any]) -> None:
    """Print how the model continues `prompt`, or answers it, as it comes.

    `formats` are arguments of `CausalLM.from_pretrained`, and `options` of `CausalLM.generate`; None stands for their
    defaults.

    Raises
    ------
    UserError
        Before anything is printed.
    """
    (readable,) = texts_given([prompt])
    model = _load(directory, formats)
    with errors_of_models():
        given: Any = [{"role": "user", "content": readable}] if is_chat else readable
        pieces = (model.chat if is_chat else model.generate)(given, stream=True, **_without_none(options))
    try:
        with errors_of_models():
            for piece in pieces:
                sys.stdout.write(_encodable(piece))
                sys.stdout.flush()
    except (KeyboardInterrupt, UserError):
        _end_line(model)
        raise
    _end_line(model)


def run_file(
    directory: str,
    formats: Mapping[str, Any],
    path: str,
    is_chat: bool,
    options: Mapping[str, Any],
    output: str | None,
) -> None:
    """Write how the model continues, or answers, the lines of the file at `path` to `output`. If the name of the file
    ends in .jsonl, its lines are JSON objects with ``prompt`` or ``messages``.

    Raises
    ------
    UserError
        Before anything is written, or where a line cannot be continued; then `output` is as before.
    """
    check_lines_output(output)
    refuse_to_replace_source(path, output)
    with opened([], path) as source:
        model = _load(directory, formats)
        lines = objects(source, _checked) if path.endswith(".jsonl") else ({"prompt": line} for line in source)
        inputs = (_as_messages(line) if is_chat else line for line in lines)
        batcher = Batcher(model, max_sequences=_TOGETHER)
        counts = Counter[str]()

        def continued(inputs: Iterable[_Object]) -> Iterator[list[str]]:
            for request in _in_order(batcher, _submitted(batcher, model, inputs, _without_none(options))):
                yield [request.result()]
                counts["read"] += request.statistics.prompt_tokens
                counts["new"] += request.statistics.new_tokens

        with lines_to(output) as (write, progress):
            for (given,), (text,) in answers(continued, inputs, source, progress):
                write(f"{json.dumps(given | {'text': text})}\n")
        report(output, f"{source.count:,} texts")
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


def _load(directory: str, formats: Mapping[str, Any]) -> CausalLM:
    return loaded(lambda: CausalLM.from_pretrained(directory, **_without_none(formats)))


def _checked(value: _Object) -> _Object:
    if ("prompt" in value) == ("messages" in value):
        raise UserError("it must have a prompt or messages, one of them")
    if "prompt" in value:
        text_in(value, "prompt")
    elif not isinstance(value["messages"], list):
        raise UserError(f"messages must be a list; got {type(value['messages']).__name__}")
    return value


def _as_messages(value: _Object) -> _Object:
    """A prompt as what a user says in a conversation."""
    if "messages" in value:
        return value
    rest = {name: given for name, given in value.items() if name != "prompt"}
    return {"messages": [{"role": "user", "content": value["prompt"]}], **rest}


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _encodable(text: str) -> str:
    """The text with a question mark for what the terminal cannot show."""
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
