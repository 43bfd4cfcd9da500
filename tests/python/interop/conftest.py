"""What tests of plugs have in common: a model with prompts, and a network that nobody may use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mha_native.sentence_transformers import CrossEncoder, SentenceTransformer


@pytest.fixture
def prompted_model(tmp_path: Path) -> str:
    """The directory of a tiny model with different prompts for queries and for documents."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    import tiny_bert

    prompts = {"prompts": {"query": "the cat ", "document": "a b "}}
    return str(tiny_bert.write(tmp_path / "model", files={"config_sentence_transformers.json": prompts}))


@pytest.fixture
def expected(prompted_model: str) -> SentenceTransformer:
    """That model, whose embeddings those of a plug must be."""
    return SentenceTransformer(prompted_model)


@pytest.fixture
def ranking_model(tmp_path: Path) -> str:
    """The directory of a tiny model that scores pairs of texts."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    import tiny_classifiers

    return str(tiny_classifiers.write(tmp_path / "ranker", labels=1))


@pytest.fixture
def ranking(ranking_model: str) -> Callable[[str, list[str]], list[tuple[int, float]]]:
    """The order that it gives texts for a query: their numbers and scores."""
    model = CrossEncoder(ranking_model)
    return lambda query, texts: [(entry["corpus_id"], entry["score"]) for entry in model.rank(query, texts)]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A failure if something resolves a name or connects to another machine, also where it hides that it cannot."""
    attempts: list[Any] = []

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        attempts.append(host)
        raise OSError("this test has no network")

    def connect(self: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise OSError("this test has no network")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    yield
    assert attempts == []
