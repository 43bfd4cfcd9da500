"""Embeddings and the list of models, as the API of OpenAI has them."""

import base64
from typing import Any

import msgspec
import numpy as np

from .calls import Answer, Call, answer
from .config import EMBEDDING, SPEECH
from .engines import EncodeEngine, Engine
from .errors import Failure
from .inputs import check_whole, texts_of
from .service import Endpoint, Service


class _Embeddings(msgspec.Struct):
    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: bool = True
    normalize: bool | None = None


async def _embeddings(service: Service, call: Call) -> Answer:
    asked = call.read(_Embeddings)
    if asked.encoding_format not in (None, "float", "base64"):
        raise Failure("invalid", 'encoding_format: must be "float" or "base64"', "encoding_format")
    texts = texts_of(call, "input", asked.input)
    engine = service.engine(call, asked.model, (EMBEDDING,))
    options = embedding_options(engine, asked.dimensions, asked.normalize, asked.prompt_name)
    if not asked.truncate:
        prompt = check_prompt(engine, asked.prompt_name)
        await service.in_pool(sum(map(len, texts)), lambda: check_whole(engine, texts, "input", prompt))
    rows, request = await service.encoded(call, engine, texts, "input", **options)
    values: Any = rows
    if asked.encoding_format == "base64":
        values = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in np.ascontiguousarray(rows)]
    count = sum(request.token_counts)
    return answer(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(values)],
            "model": engine.name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        },
        work_headers(call, request),
    )


def embedding_options(
    engine: EncodeEngine, dimensions: int | None, normalize: bool | None, prompt_name: str | None
) -> dict[str, Any]:
    """Return the options of `SentenceEncoder.encode` for the fields of a request."""
    options: dict[str, Any] = {}
    if dimensions is not None:
        most = engine.model.embed_dim
        if not 1 <= dimensions <= most:
            raise Failure("invalid", f"dimensions: must be from 1 to {most}; got {dimensions}", "dimensions")
        options |= {"truncate_dim": dimensions, "normalize": True}
    if normalize is not None:
        options["normalize"] = normalize
    if prompt_name is not None or engine.prompt_name is not None:
        options["prompt_name"] = engine.prompt_name if prompt_name is None else prompt_name
        check_prompt(engine, prompt_name)
    return options


def check_prompt(engine: EncodeEngine, prompt_name: str | None) -> str:
    """Return the prompt of a request, or raise the failure of an unknown name."""
    try:
        return engine.prompt_of(prompt_name)
    except ValueError as error:
        raise Failure("invalid", str(error), "prompt_name") from None


def work_headers(call: Call, request: Any) -> tuple[tuple[str, str], ...]:
    """Return the headers of Text Embeddings Inference about the work of a request, in milliseconds."""
    tokens, queued, computed = request.statistics
    call.log |= {"queue_ms": round(1e3 * queued, 2), "compute_ms": round(1e3 * computed, 2)}
    return (
        ("x-compute-tokens", str(tokens)),
        ("x-total-time", str(round(1e3 * call.seconds))),
        ("x-queue-time", str(round(1e3 * queued))),
        ("x-inference-time", str(round(1e3 * computed))),
    )


def entry_of(service: Service, engine: Engine) -> dict[str, Any]:
    """Return the entry of a model in lists of models."""
    found = {
        "id": engine.name,
        "object": "model",
        "created": service.created,
        "owned_by": "mha_native",
        "max_model_len": engine.max_length,
        "kind": engine.kind,
        "weight_dtype": engine.weight_dtype,
        "aliases": [alias for alias, name in service.config.aliases.items() if name == engine.name],
        "queue": engine.load(),
    }
    if engine.kind == EMBEDDING:
        found["dimensions"] = engine.model.embed_dim
    if engine.kind == SPEECH:
        found["languages"] = engine.model.supported_languages
    return found


async def _models(service: Service, call: Call) -> Answer:
    return answer({"object": "list", "data": [entry_of(service, engine) for engine in service.engines.values()]})


async def _one_model(service: Service, call: Call) -> Answer:
    name = call.scope["path_params"]["name"]
    return answer(
        entry_of(service, service.engine(call, name, tuple({each.kind for each in service.engines.values()})))
    )


ENDPOINTS = [
    *(
        Endpoint("POST", path, _embeddings, body=_Embeddings, about="Embeddings, as the API of OpenAI has them")
        for path in ("/v1/embeddings", "/embeddings")
    ),
    Endpoint("GET", "/v1/models", _models, about="All models"),
    Endpoint("GET", "/v1/models/{name:path}", _one_model, about="A model"),
]
