"""The page of the server for a browser: one file, under a policy that runs only its own script."""

import base64
import hashlib
import re
from pathlib import Path

from .calls import Answer, Call
from .information import health
from .service import Endpoint, Service

_PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    """Return the hash of the only element with this tag, as a policy names it."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash_of('script')}",
        f"style-src {_hash_of('style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
    ("vary", "accept"),
)


async def _page(service: Service, call: Call) -> Answer:
    """Answer the page to a browser, and to others that the process runs, as Text Embeddings Inference does."""
    if b"text/html" not in call.headers.get(b"accept", b""):
        return await health(service, call)
    return Answer(_PAGE.encode(), headers=_HEADERS, content_type="text/html; charset=utf-8")


ENDPOINTS = [Endpoint("GET", "/", _page, is_open=True, about="A page for a browser; else as /health")]
