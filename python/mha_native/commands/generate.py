"""The command ``generate``: a language model continues a prompt, or the lines of a file."""

import argparse
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from ..models import CausalLM
from ..models.generation.engine import MOST_NEW_TOKENS, NUM_DRAFT_TOKENS
from ..models.generation.speculation import PROMPT_LOOKUP
from ..serving import Batcher, Request
from .errors import UserError, complain
from .input_texts import objects, opened, text_given, text_in
from .model_calls import answers, errors_of_models, language_model, loaded
from .output import check_lines_output, lines_to, refuse_to_replace_source, report, write_at_once
from .shared_arguments import add_generation, add_model, count, formats_of, generation_of, one_source

about = "text of a language model that continues prompts, or answers them"

# Number of lines of a file that are continued together: each step reads the weights once for all of them. Each line of
# such a group draws its own random numbers, prompts and conversations separately.
_TOGETHER = 8

# Lines that are read before the text of the first one of them is written.
_MOST_AHEAD = 256

_Object = dict[str, Any]  # prompt or messages, and the other entries of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "a .gguf file; ")
    source = one_source(parser, "continue")
    prompt = "a prompt; the text is printed as it comes; - reads standard input"
    source.add_argument("--prompt", metavar="TEXT", help=prompt)
    lines = "a prompt in each line, in UTF-8; in a file .jsonl a JSON object: prompt, or messages"
    source.add_argument("--file", metavar="FILE", help=f"{lines}; - reads lines of standard input")
    parser.add_argument("--chat", action="store_true", help="answer prompts, by the chat template of the model")
    add_generation(parser, MOST_NEW_TOKENS)
    draft = f"with --prompt: a smaller model with the same tokens, or {PROMPT_LOOKUP}; the text comes faster"
    parser.add_argument("--draft", metavar="MODEL", help=draft)
    most = f"with --draft: the most tokens that are drafted before they are verified; default: {NUM_DRAFT_TOKENS}"
    parser.add_argument("--num-draft-tokens", metavar="N", type=count, help=most)
    output = "with --file: out.jsonl; default: JSON lines to standard output"
    parser.add_argument("--output", metavar="PATH", help=output)


def run(options: argparse.Namespace) -> None:
    generation = generation_of(options)  # before the model is read
    if options.num_draft_tokens is not None and options.draft is None:
        options.usage_error("--num-draft-tokens needs --draft")
    if options.file is not None:
        if options.draft is not None:
            options.usage_error("--draft needs --prompt")
        _continue_file(options, generation)
    elif options.output is not None:
        options.usage_error("--output needs --file")
    else:
        _continue_prompt(options, generation)


def _continue_prompt(options: argparse.Namespace, generation: dict[str, Any]) -> None:
    """Print how the model continues the prompt, or answers it, as it comes. Errors come before any output."""
    prompt = text_given(options.prompt)
    model = language_model(options)
    if options.draft is not None:
        generation["draft"] = _draft(options)
    if options.num_draft_tokens is not None:
        generation["num_draft_tokens"] = options.num_draft_tokens
    with errors_of_models():
        given: Any = [{"role": "user", "content": prompt}] if options.chat else prompt
        pieces = (model.chat if options.chat else model.generate)(given, stream=True, **generation)
    try:
        with errors_of_models():
            for piece in pieces:
                write_at_once(piece)
    except (KeyboardInterrupt, UserError):
        _end_line(model)
        raise
    _end_line(model)


def _draft(options: argparse.Namespace) -> Any:
    """Return the draft that the arguments name."""
    if options.draft == PROMPT_LOOKUP:
        return PROMPT_LOOKUP
    return loaded(lambda: CausalLM.from_pretrained(options.draft, **formats_of(options)))


def _continue_file(options: argparse.Namespace, generation: dict[str, Any]) -> None:
    """Write how the model continues, or answers, each line of the file. A failure leaves the output as it was."""
    check_lines_output(options.output)
    refuse_to_replace_source(options.file, options.output)
    with opened([], options.file) as source:
        model = language_model(options)
        has_objects = options.file.endswith(".jsonl")
        lines = objects(source, _checked) if has_objects else ({"prompt": line} for line in source)
        inputs = (_as_messages(line) if options.chat else line for line in lines)
        batcher = Batcher(model, max_sequences=_TOGETHER)
        counts = Counter[str]()

        def continued(inputs: Iterable[_Object]) -> Iterator[list[str]]:
            for request in _in_order(batcher, _submitted(batcher, model, inputs, generation)):
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


def _end_line(model: CausalLM) -> None:
    """End the line of a text, and report the speed."""
    print(flush=True)
    statistics = model.statistics
    if statistics.new_tokens:
        speed = statistics.tokens_per_second
        words = "" if speed != speed else f", {speed:,.1f} tokens a second"
        if drafted := statistics.draft_tokens:
            words += f", {statistics.accepted_tokens:,} of {drafted:,} drafted tokens accepted"
        complain(
            f"{statistics.prompt_tokens:,} tokens read in {statistics.prompt_seconds:.2f} s, "
            f"{statistics.new_tokens:,} generated{words}"
        )
