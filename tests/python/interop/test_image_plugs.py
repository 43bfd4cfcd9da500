"""Images in the interfaces of Chroma, Haystack, LangChain and LlamaIndex: the embeddings of the model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("PIL")
pytest.importorskip("transformers")
pytest.importorskip("torch")

from PIL import Image
from saved_image_models import save_clip
from tolerance import assert_same_bits

from mha_native.sentence_transformers import SentenceTransformer

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two images."""
    home, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    paths = [home / f"{i}.png" for i in range(2)]
    for i, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (30 + i, 40, 3), dtype=np.uint8)).save(path)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def expected(folder: str, paths: list[str]) -> Any:
    return SentenceTransformer(folder).encode(paths)


def _same(found: Any, expected: Any) -> None:
    assert_same_bits(np.array(found, np.float32), expected)


def test_chroma(folder: str, paths: list[str], expected: Any) -> None:
    pytest.importorskip("chromadb")
    from mha_native.interop.chroma import MhaNativeEmbeddingFunction

    function = MhaNativeEmbeddingFunction(folder)
    arrays = [np.array(Image.open(path)) for path in paths]
    _same(function(arrays), expected)
    _same(function.embed_query(arrays), expected)
    _same(function(["the dog"]), SentenceTransformer(folder).encode_document(["the dog"]))


def test_haystack(folder: str, paths: list[str], expected: Any) -> None:
    pytest.importorskip("haystack")
    from haystack import Document

    from mha_native.interop.haystack import MhaNativeDocumentImageEmbedder, MhaNativeTextEmbedder

    home = str(Path(paths[0]).parent)
    first = MhaNativeDocumentImageEmbedder(folder, file_path_meta_field="path", root_path=home)
    given = [Document(meta={"path": Path(path).name}) for path in paths]
    for embedder in (first, MhaNativeDocumentImageEmbedder.from_dict(first.to_dict())):
        _same([document.embedding for document in embedder.run(given)["documents"]], expected)
    _same(MhaNativeTextEmbedder(folder).run("dog")["embedding"], SentenceTransformer(folder).encode_query("dog"))
    with pytest.raises(ValueError, match=r"^MhaNativeDocumentImageEmbedder\.run: .* field path .*; got None at 1"):
        first.run([given[0], Document(content="dog")])
    with pytest.raises(TypeError, match=r"^MhaNativeDocumentImageEmbedder: file_path_meta_field must be a str; got 3"):
        MhaNativeDocumentImageEmbedder(folder, file_path_meta_field=3)  # type: ignore[arg-type]


def test_langchain(folder: str, paths: list[str], expected: Any, prompted_model: str) -> None:
    pytest.importorskip("langchain_core")
    from mha_native.interop.langchain import MhaNativeEmbeddings

    _same(MhaNativeEmbeddings(model_name=folder).embed_image(uris=paths), expected)
    with pytest.raises(ValueError, match=r"^MhaNativeEmbeddings\.embed_image: the model must be one of images; .* not"):
        MhaNativeEmbeddings(model_name=prompted_model).embed_image(paths)
    with pytest.raises((ValueError, OSError), match="nowhere"):
        MhaNativeEmbeddings(model_name=folder).embed_image(["/nowhere.png"])


def test_llama_index(folder: str, paths: list[str], expected: Any) -> None:
    pytest.importorskip("llama_index.core")
    from mha_native.interop.llama_index import MhaNativeMultiModalEmbedding

    embedding: Any = MhaNativeMultiModalEmbedding(model_name=folder)
    _same(embedding.get_image_embedding(paths[0]), expected[0])
    _same(embedding.get_image_embedding_batch(paths), expected)
    _same(asyncio.run(embedding.aget_image_embedding(paths[1])), expected[1])
    _same(embedding.get_text_embedding("the dog"), SentenceTransformer(folder).encode_document("the dog"))
