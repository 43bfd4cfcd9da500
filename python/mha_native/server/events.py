"""Streams of events: answers whose pieces come while they are computed."""

from collections.abc import AsyncIterator
from typing import Any

import orjson

from .calls import Answer

PING_SECONDS = 15.0  # without a piece, after which a stream gets a comment, for proxies
PING, DONE = b": ping\n\n", b"data: [DONE]\n\n"

_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


def encoded_event(value: Any) -> bytes:
    """Return an event with a value in JSON."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def event_stream(pieces: AsyncIterator[bytes]) -> Answer:
    """Return an answer of events."""
    return Answer(pieces, headers=_HEADERS, content_type="text/event-stream; charset=utf-8")
