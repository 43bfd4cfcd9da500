"""/openapi.json: the paths of the server, and the fields of their requests."""

from importlib.metadata import version
from typing import Any

import msgspec
import orjson

from .calls import Answer, Call
from .service import Endpoint, Service

_PLACE = "#/components/schemas/{name}"

_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
        "id": {"type": "string"},
        "message": {"type": "string"},
    },
}
_TEI_ERROR = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {
        "error": {"type": "string"},
        "error_type": {"enum": ["Backend", "Empty", "Overloaded", "Tokenizer", "Unhealthy", "Validation"]},
    },
}

_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}


def endpoint(endpoints: list[Endpoint]) -> Endpoint:
    """Return the endpoint that describes itself and other endpoints."""

    async def respond(service: Service, call: Call) -> Answer:
        return Answer(content)

    own = Endpoint("GET", "/openapi.json", respond, is_open=True, about="This description")
    content = orjson.dumps(document([*endpoints, own]), option=orjson.OPT_SORT_KEYS)
    return own


def document(endpoints: list[Endpoint]) -> dict[str, Any]:
    """Return a description by OpenAPI 3.1."""
    bodies = sorted({each.body for each in endpoints if each.body is not None}, key=lambda body: body.__name__)
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_PLACE)
    of_body = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = each.path.replace(":path}", "}")
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, of_body)
    errors = {"OpenAIError": _OPENAI_ERROR, "TextEmbeddingsInferenceError": _TEI_ERROR}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mha_native", "version": version("mha_native"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {**components, **errors},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Endpoint, of_body: dict[type, Any]) -> dict[str, Any]:
    error = _PLACE.format(name="TextEmbeddingsInferenceError" if each.is_tei else "OpenAIError")
    failures = {"description": "An error", "content": {"application/json": {"schema": {"$ref": error}}}}
    found: dict[str, Any] = {
        "summary": each.about,
        "responses": {"200": {"description": each.about}, "4XX": failures, "5XX": failures},
        "security": [] if each.is_open else [{"key": []}],
    }
    if "{name" in each.path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if each.method == "POST":
        schema = {"type": "object"} if each.body is None else of_body[each.body]
        kind = "application/json"
        if each.file is not None:
            of_file = {"type": "object", "required": [each.file], "properties": {each.file: _FILE}}
            kind, schema = "multipart/form-data", {"allOf": [schema, of_file]}
        found["requestBody"] = {"required": not each.is_admin, "content": {kind: {"schema": schema}}}
    return found
