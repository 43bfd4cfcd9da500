"""Models that an administrator loads, opens again, and unloads, while the server runs."""

from time import monotonic

import msgspec

from .calls import Answer, Call, answer
from .config import Config, Model, check_name
from .errors import Failure
from .openai import entry_of
from .service import Endpoint, Service


class _Load(msgspec.Struct, forbid_unknown_fields=True):  # type: ignore[call-arg, unused-ignore]
    path: str | None = None
    dtype: str | None = None
    weight_dtype: str | None = None
    kind: str | None = None
    prompt_name: str | None = None


async def _load(service: Service, call: Call) -> Answer:
    """Open a model, under a new name or in the place of the model that has it; the path may be left out then."""
    name = call.scope["path_params"]["name"]
    asked = call.read(_Load) if call.body.strip() else _Load()
    begin = monotonic()
    try:
        check_name("models", name)
        if name in service.config.aliases:
            raise ValueError(f"{name} is another name of the model {service.config.aliases[name]}")
        engine = await service.open(name, _settings(service.config, name, asked))
    except MemoryError as error:
        raise Failure("memory", f"The model was not opened: {error}.", "path") from error
    except (OSError, TypeError, ValueError, ImportError) as error:
        raise Failure("invalid", f"The model was not opened: {error}", "path") from error
    return answer(entry_of(service, engine) | {"seconds": round(monotonic() - begin, 3)})


def _settings(config: Config, name: str, asked: _Load) -> Model:
    """Return the settings of a model. Those of a model that is there count if the request has none."""
    given = {field: value for field in asked.__struct_fields__ if (value := getattr(asked, field)) is not None}
    if given:
        if "path" not in given:
            raise ValueError("path must be given with other settings")
        return Model(**given)
    if name not in config.models:
        raise ValueError(f"path must be given: there is no model {name} yet")
    found = config.models[name]
    return found if isinstance(found, Model) else Model(found)


async def _unload(service: Service, call: Call) -> Answer:
    name = call.scope["path_params"]["name"]
    try:
        await service.unload(name)
    except KeyError:
        message = "The model does not exist; GET /v1/models lists those of this server."
        raise Failure("model", message, "model") from None
    except ValueError as error:
        raise Failure("invalid", str(error), "model") from error
    return answer({"id": name, "object": "model", "deleted": True})


_PATH = "/admin/models/{name:path}"

ENDPOINTS = [
    Endpoint("POST", _PATH, _load, is_admin=True, body=_Load, about="Open a model, also in the place of another"),
    Endpoint("DELETE", _PATH, _unload, is_admin=True, about="Close a model after its requests"),
]
