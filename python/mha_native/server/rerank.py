"""Rankings of documents for a query, as the APIs of Cohere and Jina have them, and Text Embeddings Inference."""

import uuid
from typing import Any

import msgspec

from .calls import Answer, Call, answer
from .config import EMBEDDING, ENTITIES, LABELS, RERANKER
from .errors import Failure
from .inputs import check_count, check_text, check_whole
from .openai import work_headers
from .service import Endpoint, Service
from .tei import check_direction, embed, model_of, predict, similarity


class _Rank(msgspec.Struct):
    query: str
    texts: list[Any]
    truncate: bool | None = None
    truncation_direction: str = "right"
    raw_scores: bool = False
    return_text: bool = False


class _Rerank(msgspec.Struct):
    query: str
    documents: list[Any]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None


async def _rank(service: Service, call: Call) -> Answer:
    asked = call.read(_Rank)
    check_direction(asked.truncation_direction)
    pairs = _pairs(call, asked.query, asked.texts, "texts")
    engine = model_of(service, call, RERANKER)
    if asked.truncate is False:
        size = sum(len(query) + len(text) for query, text in pairs)
        await service.in_pool(size, lambda: check_whole(engine, pairs, "texts"))
    order, scores, request = await _ranking(service, call, engine, pairs, "texts", asked.raw_scores)
    found = [{"index": i, "score": scores[i]} | ({"text": asked.texts[i]} if asked.return_text else {}) for i in order]
    return answer(found, work_headers(call, request))


async def _rerank(service: Service, call: Call) -> Answer:
    asked = call.read(_Rerank)
    if asked.top_n is not None and asked.top_n < 1:
        raise Failure("invalid", f"top_n: must be at least 1; got {asked.top_n}", "top_n")
    if asked.max_tokens_per_doc is not None:
        raise Failure("invalid", "max_tokens_per_doc: is not supported; long pairs are cut", "max_tokens_per_doc")
    texts = [document.get("text") if isinstance(document, dict) else document for document in asked.documents]
    pairs = _pairs(call, asked.query, texts, "documents")
    engine = service.engine(call, asked.model, (RERANKER,))
    order, scores, request = await _ranking(service, call, engine, pairs, "documents", False)
    tokens = sum(request.token_counts)
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": texts[i]}} if asked.return_documents else {})
        for i in order[: asked.top_n]
    ]
    return answer(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            "object": "rerank",
            "model": engine.name,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": tokens},
            },
        },
        work_headers(call, request),
    )


def _pairs(call: Call, query: str, texts: list[Any], param: str) -> list[tuple[str, str]]:
    check_text("query", query, "query")
    check_count(call, param, texts)
    for i, text in enumerate(texts):
        check_text(f"{param}[{i}]", text, param)
    return [(query, text) for text in texts]


async def _ranking(
    service: Service, call: Call, engine: Any, pairs: list[tuple[str, str]], param: str, is_raw: bool
) -> tuple[list[int], list[float], Any]:
    """Return the order of documents, the best first and equal ones by their places, with their scores."""
    function = "none" if is_raw else "sigmoid"
    found, request = await service.encoded(call, engine, pairs, param, function_to_apply=function)
    scores = found[:, 0].tolist()
    return sorted(range(len(scores)), key=lambda i: -scores[i]), scores, request


async def _of_body(service: Service, call: Call) -> Answer:
    """Answer /rerank, where clients of both kinds post: `documents` are those of Cohere, `texts` of the other."""
    call.is_tei = "documents" not in call.read(dict[str, Any])
    call.is_cohere = not call.is_tei
    return await (_rank if call.is_tei else _rerank)(service, call)


async def _of_kind(service: Service, call: Call) -> Answer:
    """Answer by the kind of the first model, as the default path of Text Embeddings Inference does. Sentences to
    compare come as an object."""
    if isinstance(call.read(dict[str, Any]).get("inputs"), dict):
        return await similarity(service, call)
    kind = model_of(service, call, *_OF_KINDS).kind
    return await _OF_KINDS[kind](service, call)


_OF_KINDS = {EMBEDDING: embed, RERANKER: _rank, LABELS: predict, ENTITIES: predict}

_ABOUT = "The best documents for a query"

ENDPOINTS = [
    *(
        Endpoint("POST", path, _rerank, is_cohere=True, body=_Rerank, about=f"{_ABOUT}, as Cohere and Jina have them")
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Endpoint("POST", "/rerank", _of_body, is_tei=True, body=_Rank, about=f"{_ABOUT}; with documents as /v2/rerank"),
    *(
        Endpoint("POST", path, _of_kind, is_tei=True, about="The endpoint for the kind of the first model")
        for path in ("/", "/invocations")
    ),
]
