"""The texts of a request, checked, in the forms that OpenAI and Text Embeddings Inference have."""

from typing import Any

from .calls import Call
from .engines import EncodeEngine
from .errors import Failure

_TOKENS = "{param} is token ids, which must be those of this model; in LangChain set check_embedding_ctx_length=False"


def texts_of(call: Call, param: str, given: Any) -> list[Any]:
    """Return the texts of a field that holds one or several of them, or tokens of them."""
    if isinstance(given, str):
        texts: list[Any] = [given]
    elif isinstance(given, list) and given and all(type(item) is int for item in given):
        texts = [given]
    elif isinstance(given, list):
        texts = given
    else:
        raise Failure("invalid", f"{param}: must be a text, or a list of texts", param)
    check_count(call, param, texts)
    for i, text in enumerate(texts):
        if isinstance(text, str):
            check_text(f"{param}[{i}]", text, param)
        elif not isinstance(text, list) or not all(type(item) is int for item in text):
            raise Failure("invalid", f"{param}[{i}]: must be a text", param)
        elif not call.config.token_inputs:
            raise Failure("invalid", _TOKENS.format(param=param), param)
    return texts


def check_count(call: Call, param: str, given: list[Any]) -> None:
    """Raise the failure of a list without texts, or with too many."""
    if not given:
        raise Failure("empty", f"{param}: must hold a text at least", param)
    if len(given) > call.config.max_inputs:
        message = f"{param}: must hold at most {call.config.max_inputs} texts; got {len(given)}"
        raise Failure("count", message, param)


def check_text(what: str, text: Any, param: str) -> None:
    """Raise the failure of a text that is none, or is empty."""
    if not isinstance(text, str):
        raise Failure("invalid", f"{what}: must be a text", param)
    if not text:
        raise Failure("empty", f"{what}: must not be empty", param)


def check_whole(engine: EncodeEngine, texts: list[Any], param: str, prompt: str = "") -> None:
    """Raise the failure of texts, or pairs of them, that the model would cut, for a client that wants no cuts."""
    most = int(engine.model.max_length)
    for i, count in enumerate(engine.whole_counts(texts, prompt)):
        if count > most:
            message = f"{param}[{i}]: without truncation a text must have at most {most} tokens; got {count}"
            raise Failure("context", message, param)
