"""What endpoints share: the models by their names, a pool for long work, and the queue of a model."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

from ..functions.messages import listed
from ..serving import EncodeRequest, QueueFull
from .calls import Answer, Call
from .config import Config, Model
from .engines import AnyEngine, EncodeEngine, Engine, open_engine
from .errors import Failure, of_arguments
from .metrics import Metrics
from .model_files import check_memory, signature_of

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Engine)

_log = logging.getLogger("mha_native.server")

_LONG_TEXT = 8192  # characters; longer texts become tokens in the pool, so that the loop goes on


class Service:
    """The models of a server. Only the thread of the loop uses it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.created = int(time())
        self.engines: dict[str, AnyEngine] = {}
        self.metrics = Metrics(self.engines)
        self.is_ready = self.is_draining = False
        self.is_leaving = False  # requests are taken, and /ready tells balancers to send no more
        self.num_recordings = 0  # of requests that have no answer yet
        self.pool = ThreadPoolExecutor(2, "mha_native.server")
        self._lock = asyncio.Lock()  # one model is opened at a time
        self.on_models: Callable[[], object] = lambda: None  # called when all models are open, or one has ended
        self._old: dict[Any, asyncio.Task[None]] = {}  # models that end when their requests have

    async def load(self) -> None:
        """Open all models, one after another, and compute a text with each."""
        async with self._lock:
            for name in self.config.models:
                try:
                    await self._open(name, self.config)
                except Exception as error:
                    if not self.config.keep_going:
                        raise
                    _log.error("The model %s could not be opened: %s", name, error)
        if not self.engines:
            raise ValueError("none of the models could be opened; the log has the reasons")
        self.on_models()
        self.is_ready = True

    async def reload(self, config: Config) -> None:
        """Serve by another configuration. Models whose settings or files have changed are opened again, and new ones;
        those that it lacks end. A model that cannot be opened stays as it is, and the log tells why."""
        async with self._lock:
            self.config = config
            for name in config.models:
                engine = self.engines.get(name)
                if engine is not None and engine.signature == await asyncio.to_thread(signature_of, name, config):
                    continue
                try:
                    await self._open(name, config, needs_memory=True)
                except Exception as error:
                    _log.error("The model %s could not be opened, and stays as it was: %s", name, error)
            for name in [name for name in self.engines if name not in config.models]:
                self._end(name)
            _log.info("The configuration was read again; models: %s", ", ".join(self.engines))

    async def open(self, name: str, model: Model) -> Engine:
        """Open a model under a new name, or in the place of another model, whose requests end first."""
        async with self._lock:
            config = replace(self.config, models={**self.config.models, name: model})
            await self._open(name, config, needs_memory=True)
            self.config = config
            _log.info("The model %s was opened", name)
            return self.engines[name]

    async def unload(self, name: str) -> None:
        """End a model after its requests. KeyError for an unknown one, ValueError for the last one."""
        async with self._lock:  # others may have ended models before
            if len(self.engines) == 1 and name in self.engines:
                raise ValueError("The last model of a server cannot be unloaded.")
            self._end(name)
            models = {other: model for other, model in self.config.models.items() if other != name}
            aliases = {alias: known for alias, known in self.config.aliases.items() if known != name}
            self.config = replace(self.config, models=models, aliases=aliases)
            _log.info("The model %s was unloaded", name)

    async def _open(self, name: str, config: Config, needs_memory: bool = False) -> None:
        loop = asyncio.get_running_loop()
        signature = await asyncio.to_thread(signature_of, name, config)
        if needs_memory:
            check_memory(signature)
        engine = await asyncio.to_thread(open_engine, name, config.model(name), config, loop)
        engine.signature = signature
        try:
            await asyncio.to_thread(engine.warm_up)
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        if name in self.engines:
            self._retire(self.engines[name])
        self.engines[name] = engine

    def _end(self, name: str) -> None:
        self._retire(self.engines.pop(name))

    def _retire(self, engine: Engine) -> None:
        """Close a model when the requests that have found it are answered."""

        async def end() -> None:
            while engine.num_calls:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(engine.close)
            del self._old[engine]
            if engine.name not in self.engines:  # in a later turn of the loop than the notes of its last request
                self.metrics.forget(engine.name)
            # Later: this function, and for a moment the thread that has closed the model, still keep it.
            asyncio.get_running_loop().call_later(1.0, self.on_models)

        self._old[engine] = asyncio.get_running_loop().create_task(end())

    def close(self) -> None:
        """Cancel all work, and close the models."""
        self.is_ready = False
        for engine in [*self.engines.values(), *self._old]:
            engine.close()
        self.pool.shutdown(wait=False)

    def engine(self, call: Call, name: str | None, kinds: tuple[str, ...], takes_first: bool = False) -> Any:
        """Return the model of a request by its name, or the only one of some kinds; `takes_first`: the first one."""
        fitting = [engine for engine in self.engines.values() if engine.kind in kinds]
        if name is not None:
            name = self.config.aliases.get(name, name)
            if self.config.any_model_name and name not in self.engines and len(fitting) == 1:
                name = fitting[0].name
        if name is None or (name == "default" and name not in self.engines):
            if not fitting:
                raise Failure("kind", f"This server has no model of the kind {listed(kinds)}.", "model")
            if len(fitting) > 1 and not takes_first:
                names = listed(engine.name for engine in fitting)
                raise Failure("invalid", f"model: this server has several models; name one of {names}", "model")
            found = fitting[0]
        elif name not in self.engines:
            raise Failure("model", "The model does not exist; GET /v1/models lists those of this server.", "model")
        elif (found := self.engines[name]) not in fitting:
            message = f"The model {found.name} is of the kind {found.kind}; this request needs {listed(kinds)}."
            raise Failure("kind", message, "model")
        call.log["model"] = found.name
        call.use(found)
        return found

    def recording_ended(self) -> None:
        """Count the end of a request with a recording."""
        self.num_recordings -= 1

    async def in_pool(self, size: int, function: Callable[[], Result]) -> Result:
        """Return the result of a function that makes tokens of texts with `size` characters."""
        if size <= _LONG_TEXT:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    async def submitted(
        self, call: Call, engine: Engine, size: int, submit: Callable[[], Result], param: str, **names: str
    ) -> Result:
        """Return the request that `submit` adds to the queue of a model, or raise the failure of the client's one."""
        try:
            return await self.in_pool(size, submit)
        except QueueFull:
            seconds = engine.retry_seconds()
            message = f"Too many requests wait for the model; try again in {seconds} s."
            raise Failure("full", message, headers=(("retry-after", str(seconds)),)) from None
        except (TypeError, ValueError) as error:
            raise of_arguments(error, param, **names) from error

    async def encoded(
        self, call: Call, engine: EncodeEngine, texts: list[Any], param: str, **options: Any
    ) -> tuple[Any, EncodeRequest]:
        """Return the result of texts, or pairs of texts, and the request of it."""
        size = sum(len(text) if isinstance(text, str) else sum(map(_length, text)) for text in texts)
        add = lambda: engine.batcher.submit(texts, **options)  # noqa: E731
        self.metrics.asked(len(texts))
        begin = monotonic()
        request = await self.submitted(call, engine, size, add, param, texts=param, truncate_dim="dimensions")
        tokenized = monotonic() - begin
        result = await call.result_of(request)
        call.notes.append(lambda: self._note(call, engine, request, begin, tokenized))
        call.log |= {"inputs": len(texts), "prompt_tokens": sum(request.token_counts)}
        return result, request

    def _note(self, call: Call, engine: EncodeEngine, request: EncodeRequest, begin: float, tokenized: float) -> None:
        """Count a request for texts, and keep the times of its parts for traces."""
        self.metrics.computed(engine, request, tokenized)
        _, queued, computed = request.statistics
        added = begin + tokenized
        times = (("tokenize", begin, tokenized), ("queue", added, queued), ("model", added + queued, computed))
        call.phases.extend(times)


class Endpoint(NamedTuple):
    """A path of a server, and the function that answers it."""

    method: str
    path: str
    respond: Callable[[Service, Call], Awaitable[Answer]]
    is_tei: bool = False  # in the shapes of Text Embeddings Inference
    is_open: bool = False  # answers without a key, and without models
    is_cohere: bool = False  # errors have the shape of Cohere, too
    is_admin: bool = False  # needs the key of an administrator
    body: type | None = None  # of the request
    file: str | None = None  # the field of a recording, for a request that is a form
    about: str = ""


def _length(part: Any) -> int:
    return len(part) if isinstance(part, str) else 1
