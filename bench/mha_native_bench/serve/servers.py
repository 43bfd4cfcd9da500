"""Servers as processes, each started as its document says for production on a processor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep

from mha_native_bench.errors import UserError

_START_SECONDS = 120.0

# The program of most tutorials: a model in the process, and a function in the pool of threads of FastAPI.
_SENTENCE_TRANSFORMERS = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

class Asked(BaseModel):
    input: str | list[str]
    model: str | None = None

app, model = FastAPI(), SentenceTransformer(sys.argv[1], device="cpu")

@app.post("/v1/embeddings")
def embeddings(asked: Asked):
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    rows = model.encode(texts, normalize_embeddings=True, show_progress_bar=False).tolist()
    return {"data": [{"index": i, "embedding": row} for i, row in enumerate(rows)]}

uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="warning")
"""


# What its script does, of this Python.
_INFINITY = "from infinity_emb.cli import cli; cli()"


@dataclass(frozen=True)
class Kind:
    """A server: its command, with PYTHON, MODEL and PORT to fill in, and its paths for embeddings and texts."""

    command: tuple[str, ...]
    embeddings: str | None = None
    completions: str | None = None


KINDS = {
    "mha_native": Kind(
        ("PYTHON", "-m", "mha_native", "serve", "--model", "MODEL", "--port", "PORT", "--any-model-name"),
        "/v1/embeddings",
        "/v1/completions",
    ),
    "sentence-transformers": Kind(("PYTHON", "-c", _SENTENCE_TRANSFORMERS, "MODEL", "PORT"), "/v1/embeddings"),
    "infinity": Kind(
        (
            *("PYTHON", "-c", _INFINITY, "v2", "--model-id", "MODEL", "--port", "PORT", "--host", "127.0.0.1"),
            *("--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--log-level", "error"),
        ),
        "/embeddings",
    ),
    "llama-cpp-python": Kind(
        (
            *("PYTHON", "-m", "llama_cpp.server", "--model", "MODEL", "--port", "PORT", "--n_ctx", "2048"),
            *("--interrupt_requests", "false"),  # else a request ends the one before it
        ),
        None,
        "/v1/completions",
    ),
}


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]
    start_seconds: float

    @property
    def resident(self) -> int:
        """Bytes of memory of the process now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def started(name: str, model: Path, python: str | None, *more: str) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it with the context.

    Raises
    ------
    UserError
        If it does not start.
    """
    kind = KINDS[name]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    filled = {"PYTHON": python or sys.executable, "MODEL": str(model), "PORT": str(port)}
    command = [filled.get(word, word) for word in kind.command] + list(more)
    url = f"http://127.0.0.1:{port}"
    path = kind.embeddings if model.is_dir() else kind.completions
    probe = json.dumps(body_of(path, "a", str(model)) if path else {}).encode()
    begin = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = monotonic() + _START_SECONDS
            while not _answers(f"{url}{path}", probe):
                if process.poll() is not None or monotonic() > end:
                    raise UserError(f"{name} does not start: {' '.join(command)[:200]}")
                sleep(0.02)
            yield Server(url, process, perf_counter() - begin)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def body_of(path: str, text: str | list[str], model: str, **more: object) -> dict[str, object]:
    """The object that asks a server for an embedding or a text."""
    if path.endswith("embeddings"):
        return {"input": text, "model": model, "encoding_format": "base64"}  # as the client of OpenAI asks
    return {"prompt": text, "max_tokens": 1, "model": model, **more}


def _answers(url: str, body: bytes) -> bool:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
