"""The API of Text Embeddings Inference: embeddings, labels, similarities and tokens, and the facts of a model."""

from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from ..functions.messages import listed
from ..models.text.tokenizer import library_errors
from .calls import Answer, Call, answer
from .config import EMBEDDING, ENTITIES, KINDS, LABELS, RERANKER, SPARSE, SPEECH
from .engines import EncodeEngine, Engine
from .errors import Failure, of_arguments
from .inputs import check_count, check_text, check_whole, texts_of
from .openai import check_prompt, embedding_options, work_headers
from .service import Endpoint, Service

_WITH_TOKENS = tuple(kind for kind in KINDS if kind != SPEECH)

_POOLING = {"lasttoken": "last_token"}  # the name there


class _Embed(msgspec.Struct):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = None


class _EmbedAll(msgspec.Struct):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None


class _EmbedSparse(msgspec.Struct):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None
    task: str | None = None  # of this server alone: "query" or "document", for models that treat them differently


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


class _Decode(msgspec.Struct):
    ids: list[Any]
    skip_special_tokens: bool = True


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
    await check_cuts(service, engine, texts, asked.truncate, asked.prompt_name)
    rows, request = await service.encoded(call, engine, texts, "inputs", **options)
    return answer(np.ascontiguousarray(rows), work_headers(call, request))


async def check_cuts(
    service: Service, engine: EncodeEngine, texts: list[str], truncate: bool | None, prompt_name: str | None
) -> None:
    """Raise the failure of texts that are too long, unless they may be cut."""
    if truncate is False:
        prompt = check_prompt(engine, prompt_name)
        await service.in_pool(sum(map(len, texts)), lambda: check_whole(engine, texts, "inputs", prompt))


async def _embed_all(service: Service, call: Call) -> Answer:
    asked = call.read(_EmbedAll)
    check_direction(asked.truncation_direction)
    texts = texts_of(call, "inputs", asked.inputs)
    if not all(isinstance(text, str) for text in texts):
        raise Failure("invalid", "inputs: must be texts; vectors of tokens need their texts", "inputs")
    engine = model_of(service, call, EMBEDDING)
    options = embedding_options(engine, None, None, asked.prompt_name)
    await check_cuts(service, engine, texts, asked.truncate, asked.prompt_name)
    rows, request = await service.encoded(call, engine, texts, "inputs", per_token=True, **options)
    headers = work_headers(call, request)
    return await service.in_pool(sum(each.size for each in rows), lambda: answer(rows, headers))


async def _embed_sparse(service: Service, call: Call) -> Answer:
    asked = call.read(_EmbedSparse)
    check_direction(asked.truncation_direction)
    texts = texts_of(call, "inputs", asked.inputs)
    if not all(isinstance(text, str) for text in texts):
        raise Failure("invalid", "inputs: must be texts", "inputs")
    engine = model_of(service, call, SPARSE)
    options = embedding_options(engine, None, None, asked.prompt_name)
    await check_cuts(service, engine, texts, asked.truncate, asked.prompt_name)
    headers: tuple[tuple[str, str], ...] = ()
    try:
        is_static = engine.model.looks_up(asked.task)
    except ValueError as error:
        raise of_arguments(error, "task") from error
    if is_static:
        encode = lambda: engine.model.encode(texts, task=asked.task, **options)  # noqa: E731
        found = await service.in_pool(sum(map(len, texts)), encode)
    else:
        found, request = await service.encoded(call, engine, texts, "inputs", task=asked.task, **options)
        headers = work_headers(call, request)

    def rows() -> Answer:
        some = (found.row(i) for i in range(found.num_texts))
        pairs = (zip(indices.tolist(), values.tolist(), strict=True) for indices, values in some)
        return answer([[{"index": index, "value": value} for index, value in row] for row in pairs], headers)

    return await service.in_pool(len(found.values), rows)


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
    await check_cuts(service, engine, texts, parameters.truncate, parameters.prompt_name)
    rows, request = await service.encoded(call, engine, texts, "inputs", **options)
    return answer((rows[1:] @ rows[0]).tolist(), work_headers(call, request))


async def predict(service: Service, call: Call) -> Answer:
    asked = call.read(_Predict)
    check_direction(asked.truncation_direction)
    engine = model_of(service, call, LABELS, RERANKER, ENTITIES)
    if engine.kind == ENTITIES:
        return await _entities(service, call, engine, asked)
    if asked.parameters:
        names = listed(asked.parameters)
        raise Failure("invalid", f"parameters: {names} is not supported; raw_scores gives logits", "parameters")
    is_one, texts = _texts_or_pairs(call, asked.inputs)
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


async def _entities(service: Service, call: Call, engine: EncodeEngine, asked: _Predict) -> Answer:
    """Answer by the entities of texts, as the pipeline "token-classification" and its client have them."""
    if asked.raw_scores or asked.truncate is False:
        name = "raw_scores" if asked.raw_scores else "truncate"
        raise Failure("invalid", f"{name}: a model of entities has probabilities of whole texts", name)
    options = {name: value for name, value in (asked.parameters or {}).items() if value is not None}
    known = ("aggregation_strategy", "ignore_labels", "stride")
    if unknown := [name for name in options if name not in known]:
        raise Failure("invalid", f"parameters: must be of {', '.join(known)}; got {unknown[0]}", "parameters")
    is_one = isinstance(asked.inputs, str)
    texts: list[Any] = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    check_count(call, "inputs", texts)
    for i, text in enumerate(texts):
        check_text(f"inputs[{i}]", text, "inputs")
    found, request = await service.encoded(call, engine, texts, "inputs", **options)
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
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    check_count(call, "inputs", texts)
    for i, text in enumerate(texts):
        check_text(f"inputs[{i}]", text, "inputs")
    engine = model_of(service, call, *_WITH_TOKENS)
    library = _library(engine)
    if engine.kind in (EMBEDDING, SPARSE):
        before = check_prompt(engine, asked.prompt_name)
    elif asked.prompt_name is None:
        before = ""
    else:
        raise Failure("invalid", "prompt_name: needs a model of embeddings", "prompt_name")
    given = [before + text for text in texts]
    special = asked.add_special_tokens

    def tokens() -> Answer:
        with library_errors("the tokenizer failed"):
            found = library.encode_batch(given, add_special_tokens=special)
        return answer([_tokens(text, each) for text, each in zip(given, found, strict=True)])

    try:
        return await service.in_pool(sum(map(len, given)), tokens)
    except ValueError as error:
        raise of_arguments(error, "inputs") from error


def _library(engine: Engine) -> Any:
    """Return the tokenizer of a model, or raise the failure of a model without one."""
    try:
        return engine.library
    except ValueError as error:
        raise Failure("kind", str(error)) from error


def _tokens(text: str, found: Any) -> list[dict[str, Any]]:
    rows = zip(found.ids, found.tokens, found.offsets, found.special_tokens_mask, strict=True)
    return [
        {
            "id": number,
            "text": token if special else text[begin:end],
            "special": bool(special),
            "start": None if special else begin,
            "stop": None if special else end,
        }
        for number, token, (begin, end), special in rows
    ]


async def _decode(service: Service, call: Call) -> Answer:
    asked = call.read(_Decode)
    lists = asked.ids if asked.ids and isinstance(asked.ids[0], list) else [asked.ids]
    check_count(call, "ids", asked.ids)
    engine = model_of(service, call, *_WITH_TOKENS)
    library = _library(engine)
    most = library.get_vocab_size()
    for i, ids in enumerate(lists):
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < most for token in ids):
            raise Failure("invalid", f"ids[{i}]: must be tokens from 0 to {most - 1}", "ids")
    skips = asked.skip_special_tokens
    decode = lambda: library.decode_batch(lists, skip_special_tokens=skips)  # noqa: E731
    return answer(await service.in_pool(sum(map(len, lists)), decode))


async def _info(service: Service, call: Call) -> Answer:
    engine = model_of(service, call, *_WITH_TOKENS)
    types: dict[str, Any] = {engine.kind: {}}
    if engine.kind == EMBEDDING:
        types = {EMBEDDING: {"pooling": "+".join(_POOLING.get(mode, mode) for mode in engine.model.pooling_modes)}}
    if engine.kind == SPARSE:
        types = {EMBEDDING: {"pooling": "splade"}}  # as there
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


def _endpoint(path: str, respond: Any, body: type, about: str) -> Endpoint:
    return Endpoint("POST", path, respond, is_tei=True, body=body, about=about)


ENDPOINTS = [
    _endpoint("/embed", embed, _Embed, "Embeddings of texts"),
    _endpoint("/embed_all", _embed_all, _EmbedAll, "Vectors of all tokens of texts"),
    _endpoint("/embed_sparse", _embed_sparse, _EmbedSparse, "Sparse embeddings of texts: tokens with their numbers"),
    _endpoint("/similarity", similarity, _Similarity, "Products of the embedding of a text with those of others"),
    _endpoint("/predict", predict, _Predict, "Labels of texts or pairs with their scores, or entities in texts"),
    _endpoint("/tokenize", _tokenize, _Tokenize, "Tokens of whole texts with their places"),
    _endpoint("/decode", _decode, _Decode, "Texts of tokens"),
    Endpoint("GET", "/info", _info, is_tei=True, about="The facts of a model and the limits of the server"),
]
