"""Continuations of texts and answers to conversations, as the API of OpenAI has them, whole or in pieces."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from time import monotonic, time
from typing import Any, NamedTuple

import msgspec

from ..models import Completion, TokenLogprobs
from ..serving import Request, StepEvent
from .calls import Answer, Call, ClientGone, answer
from .config import TEXT, TEXT_TO_TEXT
from .engines import TextEngine, TextToTextEngine
from .errors import Failure, failure_of, of_arguments, of_computation, stopping, timed_out
from .events import DONE, PING, PING_SECONDS, encoded_event, event_stream
from .inputs import check_count
from .service import Endpoint, Service

# Fields that are not supported, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

# Options of the library that are fields of the same name.
_RENAMED = {"min_tokens": "min_new_tokens"}
_SAME = (
    *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"),
    *("stop_token_ids", "ignore_eos", "min_tokens"),
)

# Options of the search for a text by an encoder-decoder, which are fields of the same name.
_SEARCH = ("num_beams", "length_penalty", "no_repeat_ngram_size", "forced_first_token")

# Fields that a search has no use for, with the values that ask for nothing.
_NOT_IN_SEARCH: dict[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "logprobs": (),
    "echo": (False,),
    "n": (1,),
    "cache_salt": (),
}


class _Usage(msgspec.Struct):
    include_usage: bool = False


class _Asked(msgspec.Struct):
    """The fields of both endpoints."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    cache_salt: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _Usage | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _Completion(_Asked):
    prompt: str | list[Any] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    forced_first_token: int | None = None


class _Chat(_Asked):
    messages: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class _Form:
    """The objects of an endpoint: whole answers, and chunks of a stream."""

    prefix: str
    whole: str
    chunk: str

    def __init__(self, engine: TextEngine | TextToTextEngine, created: int) -> None:
        self._engine = engine
        self.head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "object": self.whole,
            "created": created,
            "model": engine.name,
            "system_fingerprint": f"mha_native-{version('mha_native')}-{engine.weight_dtype}",
        }

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        """Return a whole choice."""
        raise NotImplementedError

    def pieces(self, index: int, is_first: bool, event: StepEvent, has_logprobs: bool) -> list[dict[str, Any]]:
        """Return the choices of the chunks of an event."""
        raise NotImplementedError

    def logprobs(self, found: tuple[TokenLogprobs, ...], begin: int) -> Any:
        """Return log-probabilities; the text before them has `begin` characters."""
        raise NotImplementedError

    def text(self, token: int) -> str:
        return str(self._engine.model.decode([token]))


class _TextForm(_Form):
    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, engine: TextEngine | TextToTextEngine, created: int) -> None:
        super().__init__(engine, created)
        self._offsets: dict[int, int] = {}  # characters of each choice so far

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def pieces(self, index: int, is_first: bool, event: StepEvent, has_logprobs: bool) -> list[dict[str, Any]]:
        logprobs = self.logprobs(event.logprobs, self._offsets.get(index, 0)) if has_logprobs else None
        if logprobs is not None:
            self._offsets[index] = self._offsets.get(index, 0) + sum(map(len, logprobs["tokens"]))
        return [self.choice(index, event.piece, logprobs, event.finish_reason)]  # type: ignore[arg-type]

    def logprobs(self, found: tuple[TokenLogprobs, ...], begin: int) -> Any:
        texts = [self.text(each.token) for each in found]
        offsets = [begin + sum(map(len, texts[:i])) for i in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [
                None if each.logprob is None else {self.text(token): value for token, value in each.top}
                for each in found
            ],
            "text_offset": offsets,
        }


class _ChatForm(_Form):
    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def pieces(self, index: int, is_first: bool, event: StepEvent, has_logprobs: bool) -> list[dict[str, Any]]:
        def piece(delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

        found = [piece({"role": "assistant", "content": ""})] if is_first else []
        logprobs = self.logprobs(event.logprobs, 0) if has_logprobs and event.logprobs else None
        if event.piece or logprobs:
            found.append(piece({"content": event.piece}, logprobs))
        if event.finish_reason is not None:
            found.append(piece({}, None, event.finish_reason))
        return found

    def logprobs(self, found: tuple[TokenLogprobs, ...], begin: int) -> Any:
        return {
            "content": [
                self._entry(each.token, each.logprob)
                | {"top_logprobs": [self._entry(token, value) for token, value in each.top]}
                for each in found
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.text(token)
        whole = "\ufffd" not in text  # else it is a part of a character, whose bytes the tokenizer does not tell
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


class _Texts:
    """The texts of a request: some for each prompt. Events come by a queue, as steps end."""

    def __init__(
        self, service: Service, call: Call, engine: TextEngine, requests: list[Request], copies: int, begin: float
    ) -> None:
        self._service, self._call, self._engine = service, call, engine
        self._requests, self._copies = requests, copies
        self._events: asyncio.Queue[tuple[int, StepEvent]] = asyncio.Queue()
        self._left = len(requests)
        self._begin = begin
        self._last: dict[int, float] = {}  # when the last event of a text came
        for i, request in enumerate(requests):
            call.cancel_by(request.cancel)
            engine.attach(request, lambda event, i=i: self._events.put_nowait((i, event)))  # type: ignore[misc]

    async def next(self) -> list[tuple[int, StepEvent]]:
        """Wait for events, and return all that are there; none after the end of all texts, or if none came for some
        time. Raises the failure that ends a text."""
        if not self._left:
            return []
        try:
            found = [await asyncio.wait_for(self._events.get(), PING_SECONDS)]
        except (TimeoutError, asyncio.TimeoutError):
            return []
        while not self._events.empty():
            found.append(self._events.get_nowait())
        now = monotonic()
        for i, _ in found:
            if i in self._last:
                self._service.metrics.stepped(self._engine, now - self._last[i])
            self._last[i] = now
        for i, event in found:
            if event.finish_reason is not None:
                self._left -= 1
                self._call.log["finish_reason"] = event.finish_reason
                statistics = self._requests[i].statistics
                self._service.metrics.generated(self._engine, statistics, event.finish_reason)
                first, queued = statistics.first_token_seconds, statistics.queue_seconds
                if not math.isnan(first):
                    self._call.phases += [
                        ("queue", self._begin, queued),
                        ("model", self._begin + queued, first - queued + statistics.new_seconds),
                    ]
                self._check(i, event.finish_reason)
        return found

    def _check(self, index: int, reason: str) -> None:
        """Raise the failure of a text that is not whole, and end the others."""
        if reason in ("stop", "length"):
            return
        self.cancel()
        self._call.check_stopped()
        if reason == "timeout":
            raise timed_out()
        if reason == "cancelled":
            raise stopping()
        try:
            self._requests[index].result(0)
        except Exception as error:
            raise of_computation(error) or error from error

    def cancel(self) -> None:
        for request in self._requests:
            request.cancel()

    @property
    def has_ended(self) -> bool:
        return not self._left

    @property
    def usage(self) -> dict[str, Any]:
        """The numbers of tokens."""
        each = [request.statistics for request in self._requests]
        prompts = sum(one.prompt_tokens for one in each[:: self._copies])
        new, cached = sum(one.new_tokens for one in each), sum(one.cached_tokens for one in each[:: self._copies])
        return _usage(self._call, prompts, new, cached)

    async def whole(self, form: _Form, has_logprobs: bool, echo: "_Echo | None" = None) -> Answer:
        """Wait for all texts, and return the answer."""
        while not self.has_ended:
            await self.next()
        choices = []
        for i, request in enumerate(self._requests):
            found = request.completion(0)
            if echo is not None:
                found = echo.before(found, i // self._copies)
            logprobs = form.logprobs(found.logprobs or (), 0) if has_logprobs else None
            choices.append(form.choice(i, found.text, logprobs, found.finish_reason))
        usage = self.usage
        if echo is not None and echo.is_alone:
            usage = _usage(self._call, usage["prompt_tokens"], 0, usage["prompt_tokens_details"]["cached_tokens"])
        return answer({**form.head, "choices": choices, "usage": usage})

    async def stream(self, form: _Form, has_logprobs: bool, has_usage: bool) -> Answer:
        """Wait for the first event, and return an answer that goes on with the others."""
        first: list[tuple[int, StepEvent]] = []
        while not first:
            first = await self.next()
        pieces = self._pieces(form, has_logprobs, has_usage, first)
        return event_stream(pieces)

    async def _pieces(
        self, form: _Form, has_logprobs: bool, has_usage: bool, found: list[tuple[int, StepEvent]]
    ) -> AsyncIterator[bytes]:
        head = {**form.head, "object": form.chunk} | ({"usage": None} if has_usage else {})
        begun: set[int] = set()
        try:
            while True:
                data = []
                for i, event in found:
                    for choice in form.pieces(i, i not in begun, event, has_logprobs):
                        data.append(encoded_event({**head, "choices": [choice]}))
                    begun.add(i)
                if self.has_ended:
                    usage = self.usage
                    if has_usage:
                        data.append(encoded_event({**head, "choices": [], "usage": usage}))
                    yield b"".join([*data, DONE])
                    return
                if data:
                    yield b"".join(data)
                elif not found:
                    yield PING
                try:
                    found = await self.next()
                except ClientGone:
                    raise
                except Exception as error:
                    yield encoded_event({"error": failure_of(error, self._call.identifier).error})
                    return
        finally:
            self.cancel()


class _Echo(NamedTuple):
    """Prompts that their texts begin with."""

    texts: list[str]
    tokens: list[list[int]]
    is_alone: bool  # without new tokens

    def before(self, found: Completion, index: int) -> Completion:
        """Return a continuation after its prompt, whose first token has no log-probability."""
        first = TokenLogprobs(self.tokens[index][0], None, ())  # type: ignore[arg-type]
        logprobs = (first, *(each for each in found.prompt_logprobs or () if each is not None))
        if self.is_alone:
            return found._replace(text=self.texts[index], logprobs=logprobs, finish_reason="length")
        return found._replace(text=self.texts[index] + found.text, logprobs=(*logprobs, *(found.logprobs or ())))


def _usage(call: Call, prompts: int, new: int, cached: int) -> dict[str, Any]:
    """Return the numbers of tokens of an answer, which its line of the log has, too."""
    call.log |= {"prompt_tokens": prompts, "completion_tokens": new}
    return {
        "prompt_tokens": prompts,
        "completion_tokens": new,
        "total_tokens": prompts + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def _completions(service: Service, call: Call) -> Answer:
    asked = call.read(_Completion)
    _check_supported(call)
    prompts = asked.prompt
    if prompts is None:
        raise Failure("invalid", "prompt: must be a text, or a list of texts", "prompt")
    if isinstance(prompts, str) or (prompts and all(type(token) is int for token in prompts)):
        prompts = [prompts]
    check_count(call, "prompt", prompts)
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and all(type(token) is int for token in prompt)
        ):
            raise Failure("invalid", f"prompt[{i}]: must be a text, or a list of tokens", "prompt")
    if asked.logprobs is not None and not 0 <= asked.logprobs <= 5:
        raise Failure("invalid", f"logprobs: must be from 0 to 5; got {asked.logprobs}", "logprobs")
    engine = service.engine(call, asked.model, (TEXT, TEXT_TO_TEXT))
    if isinstance(engine, TextToTextEngine):
        return await _search(service, call, engine, prompts, asked)
    if given := [name for name in _SEARCH if getattr(asked, name) is not None]:
        raise Failure("invalid", f"{given[0]}: needs an encoder-decoder; this model draws its tokens", given[0])
    echo = _echo(engine, prompts, asked) if asked.echo else None
    if echo is not None and echo.is_alone:
        asked.max_tokens, asked.max_completion_tokens = 1, None  # the least that a model computes
    options, copies = _options(call, asked, 16), _copies(asked)
    if echo is not None:
        options["prompt_logprobs"] = asked.logprobs

    def submit(made: list[Request]) -> None:
        for prompt in prompts if echo is None else echo.tokens:
            made += engine.batcher.submit(prompt, n=copies, logprobs=asked.logprobs, **options)

    texts = await _texts(service, call, engine, sum(map(len, prompts)), copies, submit, "prompt")
    if echo is not None:
        return await texts.whole(_TextForm(engine, int(time())), asked.logprobs is not None, echo)
    return await _answer(texts, _TextForm(engine, int(time())), asked, asked.logprobs is not None)


def _echo(engine: TextEngine, prompts: list[Any], asked: _Completion) -> _Echo:
    """Return the prompts with their tokens, or raise the failure of a request that cannot have them."""
    if asked.stream:
        raise Failure("invalid", "echo: is not supported with stream", "echo")
    try:
        tokens = [engine.model.generator.prompts("", "prompt", prompt)[1][0] for prompt in prompts]
        texts = [prompt if isinstance(prompt, str) else engine.model.decode(prompt) for prompt in prompts]
    except (TypeError, ValueError) as error:
        raise of_arguments(error, "prompt") from error
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return _Echo(texts, tokens, most == 0)


async def _chat(service: Service, call: Call) -> Answer:
    asked = call.read(_Chat)
    _check_supported(call)
    messages = [_message(i, message) for i, message in enumerate(asked.messages or ())]
    if not messages:
        raise Failure("empty", "messages: must hold a message at least", "messages")
    top = asked.top_logprobs or 0
    if not 0 <= top <= 20:
        raise Failure("invalid", f"top_logprobs: must be from 0 to 20; got {top}", "top_logprobs")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Failure("invalid", "top_logprobs: needs logprobs", "top_logprobs")
    engine = service.engine(call, asked.model, (TEXT,))
    options, copies = _options(call, asked, service.config.max_new_tokens), _copies(asked)
    options["logprobs"] = top if asked.logprobs else None
    variables = asked.chat_template_kwargs

    def submit(made: list[Request]) -> None:
        made += engine.batcher.submit_chat(messages, variables=variables, n=copies, **options)

    size = sum(len(message["content"]) for message in messages)
    texts = await _texts(service, call, engine, size, copies, submit, "messages")
    return await _answer(texts, _ChatForm(engine, int(time())), asked, bool(asked.logprobs))


async def _search(
    service: Service, call: Call, engine: TextToTextEngine, prompts: list[Any], asked: _Completion
) -> Answer:
    """Answer by the texts that a search finds. They are there at its end, so that a stream has a piece for each."""
    for name, values in _NOT_IN_SEARCH.items():
        if (value := getattr(asked, name)) is not None and value not in values:
            raise Failure("invalid", f"{name}: is not supported by an encoder-decoder, which searches for texts", name)
    options = {name: value for name in _SEARCH if (value := getattr(asked, name)) is not None}
    most = _most_new(asked, 16)
    if asked.min_tokens is not None:
        options["min_new_tokens"] = asked.min_tokens
    begin = monotonic()
    tokens, future = await service.submitted(
        *(call, engine, sum(map(len, prompts))),
        lambda: engine.submit(prompts, max_new_tokens=most, **options),
        param="prompt",
        texts="prompt",
    )
    try:
        found = await call.result_of(future)
    except (TypeError, ValueError) as error:
        raise of_arguments(error, "prompt") from error
    form = _TextForm(engine, int(time()))
    choices = [
        form.choice(i, engine.model.decode(each.tokens), None, "stop" if engine.has_ended(each) else "length")
        for i, each in enumerate(found)
    ]
    usage = _usage(call, sum(map(len, tokens)), sum(len(each.tokens) for each in found), 0)
    seconds = monotonic() - begin
    call.phases.append(("model", begin, seconds))
    call.log |= {"compute_ms": round(1e3 * seconds, 2), "finish_reason": choices[-1]["finish_reason"]}
    service.metrics.searched(engine, usage, [str(choice["finish_reason"]) for choice in choices])
    if not asked.stream:
        return answer({**form.head, "choices": choices, "usage": usage})
    has_usage = asked.stream_options is not None and asked.stream_options.include_usage
    head = {**form.head, "object": form.chunk} | ({"usage": None} if has_usage else {})
    events = [encoded_event({**head, "choices": [choice]}) for choice in choices]
    if has_usage:
        events.append(encoded_event({**head, "choices": [], "usage": usage}))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"".join([*events, DONE])

    return event_stream(pieces())


async def _answer(texts: _Texts, form: _Form, asked: _Asked, has_logprobs: bool) -> Answer:
    if not asked.stream:
        return await texts.whole(form, has_logprobs)
    has_usage = asked.stream_options is not None and asked.stream_options.include_usage
    return await texts.stream(form, has_logprobs, has_usage)


async def _texts(
    service: Service,
    call: Call,
    engine: TextEngine,
    size: int,
    copies: int,
    submit: Callable[[list[Request]], None],
    param: str,
) -> _Texts:
    """Return the texts whose requests `submit` adds to a list."""
    made: list[Request] = []
    begin = monotonic()
    try:
        await service.submitted(call, engine, size, lambda: submit(made), param)
    except BaseException:
        for request in made:
            request.cancel()
            engine.attach(request, lambda _: None)
        raise
    return _Texts(service, call, engine, made, copies, begin)


def _options(call: Call, asked: _Asked, most_new: int) -> dict[str, Any]:
    """Return the options of `Batcher.submit` for the fields of a request."""
    given = {name: getattr(asked, name) for name in _SAME}
    options: dict[str, Any] = {"temperature": 1.0}
    options |= {_RENAMED.get(name, name): value for name, value in given.items() if value is not None}
    if (salt := call.tenant_salt(asked.cache_salt)) is not None:
        options["cache_salt"] = salt
    if asked.top_k is not None and asked.top_k > 0:  # others ask for all tokens
        options["top_k"] = asked.top_k
    if asked.logit_bias:
        try:
            options["logit_bias"] = {int(token): value for token, value in asked.logit_bias.items()}
        except ValueError:
            raise Failure("invalid", "logit_bias: must have tokens as keys", "logit_bias") from None
    if asked.stop:
        stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop
        if len(stop) > 4:
            raise Failure("invalid", f"stop: must hold at most 4 texts; got {len(stop)}", "stop")
        options["stop"] = stop
    return options | {"max_new_tokens": _most_new(asked, most_new), "timeout": call.remaining}


def _most_new(asked: _Asked, default: int) -> int:
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if most is not None and most < 1:
        raise Failure("invalid", f"max_tokens: must be at least 1; got {most}", "max_tokens")
    return default if most is None else most


def _copies(asked: _Asked) -> int:
    copies = 1 if asked.n is None else asked.n
    if not 1 <= copies <= 8:
        raise Failure("invalid", f"n: must be from 1 to 8; got {copies}", "n")
    return copies


def _check_supported(call: Call) -> None:
    """Raise the failure of a field that asks for something that no model here does."""
    for name, value in call.read(dict[str, Any]).items():
        if name in _UNSUPPORTED and value is not None and value not in _UNSUPPORTED[name]:
            raise Failure("invalid", f"{name}: is not supported", name)


def _message(index: int, message: dict[str, Any]) -> dict[str, str]:
    """Return a message with a text as its content."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise Failure("invalid", f"messages[{index}]: role must be one of {known}", "messages")
    if message.get("tool_calls"):
        raise Failure("invalid", f"messages[{index}]: tool_calls are not supported", "messages")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        content = None if not all(isinstance(text, str) for text in texts) else "".join(map(str, texts))
        if content is None:
            raise Failure("invalid", f"messages[{index}]: only parts of type text are supported", "messages")
    if not isinstance(content, str):
        raise Failure("invalid", f"messages[{index}]: content must be a text, or a list of parts", "messages")
    return {"role": _ROLES[role], "content": content}


ENDPOINTS = [
    Endpoint("POST", "/v1/completions", _completions, body=_Completion, about="Continuations of texts"),
    Endpoint("POST", "/v1/chat/completions", _chat, body=_Chat, about="Answers to conversations"),
]
