"""What endpoints share: the models by their names, a pool for long work, and the queue of a model."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import Any, NamedTuple, TypeVar

from ..functions.messages import listed
from ..serving import EncodeRequest, QueueFull
from .calls import Answer, Call
from .config import Config
from .engines import EncodeEngine, Engine, TextEngine, open_engine
from .errors import Failure, of_arguments
from .metrics import Metrics

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Engine)

_LONG_TEXT = 8192  # characters; longer texts become tokens in the pool, so that the loop goes on


class Service:
    """The models of a server. Only the thread of the loop uses it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.created = int(time())
        self.engines: dict[str, EncodeEngine | TextEngine] = {}
        self.metrics = Metrics(self.engines)
        self.is_ready = self.is_draining = False
        self.pool = ThreadPoolExecutor(2, "mha_native.server")

    async def load(self) -> None:
        """Open all models, one after another, and compute a text with each."""
        loop = asyncio.get_running_loop()
        for name, path in self.config.models.items():
            engine = await asyncio.to_thread(open_engine, name, path, self.config, loop)
            self.engines[name] = engine
            await asyncio.to_thread(engine.warm_up)
        self.is_ready = True

    def close(self) -> None:
        """Cancel all work, and close the models."""
        self.is_ready = False
        for engine in self.engines.values():
            engine.close()
        self.pool.shutdown(wait=False)

    def engine(self, call: Call, name: str | None, kinds: tuple[str, ...], takes_first: bool = False) -> Any:
        """Return the model of a request by its name, or the only one of some kinds; `takes_first`: the first one."""
        fitting = [engine for engine in self.engines.values() if engine.kind in kinds]
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
        return found

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
        request = await self.submitted(call, engine, size, add, param, texts=param, truncate_dim="dimensions")
        result = await call.result_of(request)
        self.metrics.computed(engine, request)
        call.log |= {"inputs": len(texts), "prompt_tokens": sum(request.token_counts)}
        return result, request


class Endpoint(NamedTuple):
    """A path of a server, and the function that answers it."""

    method: str
    path: str
    respond: Callable[[Service, Call], Awaitable[Answer]]
    is_tei: bool = False  # in the shapes of Text Embeddings Inference
    is_open: bool = False  # answers without a key, and without models


def _length(part: Any) -> int:
    return len(part) if isinstance(part, str) else 1
