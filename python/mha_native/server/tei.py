"""The API of Text Embeddings Inference: embeddings, labels, similarities and tokens, and the facts of a model."""

from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from ..functions.messages import listed
from .calls import Answer, Call, answer
from .engines import EMBEDDING, LABELS, RERANKER
from .errors import Failure
from .inputs import check_count, check_text, check_whole, texts_of
from .openai import embedding_options, work_headers
from .service import Endpoint, Service


class _Embed(msgspec.Struct):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = None


class _Sentences(msgspec.Struct):
    source_sentence: str
    sentences: list[Any]


class _Parameters(msgspec.Struct):
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None


class _Similarity(msgspec.Struct):
    inputs: _Sentences
    parameters: _Parameters | None = None


class _Predict(msgspec.Struct):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    raw_scores: bool = False
    parameters: dict[str, Any] | None = None


class _Tokenize(msgspec.Struct):
    inputs: str | list[Any]
    add_special_tokens: bool = True
    prompt_name: str | None = None


def model_of(service: Service, call: Call, *kinds: str) -> Any:
    """Return the model that a request names by ``?model=`` or the header x-model, or the first one of `kinds`."""
    name = call.query.get("model") or call.headers.get(b"x-model", b"").decode("latin-1") or None
    return service.engine(call, name, kinds, takes_first=True)


def check_direction(direction: str) -> None:
    """Raise the failure of a cut at the left, which no model here makes."""
    if direction.lower() != "right":
        raise Failure("invalid", "truncation_direction: only right is supported", "truncation_direction")


async def embed(service: Service, call: Call) -> Answer:
    asked = call.read(_Embed)
    check_direction(asked.truncation_direction)
    texts = texts_of(call, "inputs", asked.inputs)
    engine = model_of(service, call, EMBEDDING)
    options = embedding_options(engine, asked.dimensions, asked.normalize, asked.prompt_name)
    if asked.truncate is False:
        await service.in_pool(sum(map(len, texts)), lambda: check_whole(engine, texts, "inputs"))
    rows, request = await service.encoded(call, engine, texts, "inputs", **options)
    return answer(np.ascontiguousarray(rows), work_headers(call, request))


async def similarity(service: Service, call: Call) -> Answer:
    asked = call.read(_Similarity)
    parameters = asked.parameters or _Parameters()
    check_direction(parameters.truncation_direction)
    check_text("inputs.source_sentence", asked.inputs.source_sentence, "inputs")
    check_count(call, "inputs.sentences", asked.inputs.sentences)
    for i, text in enumerate(asked.inputs.sentences):
        check_text(f"inputs.sentences[{i}]", text, "inputs")
    texts = [asked.inputs.source_sentence, *asked.inputs.sentences]
    engine = model_of(service, call, EMBEDDING)
    options = embedding_options(engine, None, True, parameters.prompt_name)
    if parameters.truncate is False:
        await service.in_pool(sum(map(len, texts)), lambda: check_whole(engine, texts, "inputs"))
    rows, request = await service.encoded(call, engine, texts, "inputs", **options)
    return answer((rows[1:] @ rows[0]).tolist(), work_headers(call, request))


async def predict(service: Service, call: Call) -> Answer:
    asked = call.read(_Predict)
    check_direction(asked.truncation_direction)
    if asked.parameters:
        names = listed(asked.parameters)
        raise Failure("invalid", f"parameters: {names} is not supported; raw_scores gives logits", "parameters")
    is_one, texts = _texts_or_pairs(call, asked.inputs)
    engine = model_of(service, call, LABELS, RERANKER)
    if asked.truncate is False:
        size = sum(len(part) for text in texts for part in ([text] if isinstance(text, str) else text))
        await service.in_pool(size, lambda: check_whole(engine, texts, "inputs"))
    function = "none" if asked.raw_scores else None
    scores, request = await service.encoded(call, engine, texts, "inputs", function_to_apply=function)
    labels = engine.model.labels
    found = [
        [{"label": labels[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")]  # the best first
        for row in scores
    ]
    return answer(found[0] if is_one else found, work_headers(call, request))


def _texts_or_pairs(call: Call, given: Any) -> tuple[bool, list[Any]]:
    """Return whether a field holds one text or pair, and a list of them. A flat list of two texts is one pair."""
    is_one = isinstance(given, str) or (len(given) == 2 and all(isinstance(part, str) for part in given))
    texts = []
    items = [given] if is_one else given
    check_count(call, "inputs", items)
    for i, item in enumerate(items):
        parts = [item] if isinstance(item, str) and is_one else item
        if not isinstance(parts, list) or len(parts) not in (1, 2):
            raise Failure("invalid", f"inputs[{i}]: must be a list of one text, or of a pair of them", "inputs")
        for part in parts:
            check_text(f"inputs[{i}]", part, "inputs")
        texts.append(tuple(parts) if len(parts) == 2 else parts[0])
    return is_one, texts


async def _tokenize(service: Service, call: Call) -> Answer:
    asked = call.read(_Tokenize)
    if asked.prompt_name is not None:
        raise Failure("invalid", "prompt_name: is not supported here; put the prompt before the text", "prompt_name")
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    check_count(call, "inputs", texts)
    for i, text in enumerate(texts):
        check_text(f"inputs[{i}]", text, "inputs")
    engine = model_of(service, call, EMBEDDING, RERANKER, LABELS)
    special = asked.add_special_tokens
    found = await service.in_pool(
        sum(map(len, texts)), lambda: engine.model.tokens_of(texts, add_special_tokens=special)
    )
    return answer([_tokens(text, tokens) for text, tokens in zip(texts, found, strict=True)])


def _tokens(text: str, found: Any) -> list[dict[str, Any]]:
    rows = zip(found.ids.tolist(), found.tokens, found.offsets.tolist(), found.special.tolist(), strict=True)
    return [
        {
            "id": number,
            "text": token if special else text[begin:end],
            "special": special,
            "start": None if special else begin,
            "stop": None if special else end,
        }
        for number, token, (begin, end), special in rows
    ]


async def _info(service: Service, call: Call) -> Answer:
    engine = model_of(service, call, *(each.kind for each in service.engines.values()))
    types: dict[str, Any] = {engine.kind: {}}
    if engine.kind == EMBEDDING:
        types[engine.kind]["pooling"] = "+".join(engine.model.pooling_modes)
    if engine.kind in (LABELS, RERANKER):
        names = engine.model.labels
        types[engine.kind] = {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    return answer(
        {
            "model_id": engine.name,
            "model_sha": None,
            "model_dtype": str(engine.model.dtype),
            "model_type": types,
            "max_concurrent_requests": service.config.max_waiting,
            "max_input_length": engine.max_length,
            "max_batch_tokens": service.config.max_waiting_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": service.config.max_inputs,
            "auto_truncate": True,
            "tokenization_workers": 2,
            "version": version("mha_native"),
            "sha": None,
        }
    )


ENDPOINTS = [
    Endpoint("POST", "/embed", embed, is_tei=True),
    Endpoint("POST", "/similarity", similarity, is_tei=True),
    Endpoint("POST", "/predict", predict, is_tei=True),
    Endpoint("POST", "/tokenize", _tokenize, is_tei=True),
    Endpoint("GET", "/info", _info, is_tei=True),
]
