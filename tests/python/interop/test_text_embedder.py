"""`TextEmbedder`, which all plugs for texts share, without their packages."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native.functions.needed_packages import needed_package
from mha_native.interop._text_embedder import TextEmbedder
from mha_native.models import SentenceEncoder
from mha_native.sentence_transformers import SentenceTransformer

TEXTS = ["dog", "the dog !", "", "x y z"]


def _floats(embeddings: list[list[float]]) -> Any:
    assert all(type(number) is float for row in embeddings for number in row)
    return np.array(embeddings, np.float32)


def test_queries_and_documents_have_the_prompts_of_the_model(
    prompted_model: str, expected: SentenceTransformer
) -> None:
    embedder = TextEmbedder("Plug", model_name=prompted_model)
    queries, documents = expected.encode_query(TEXTS), expected.encode_document(TEXTS)
    assert np.any(queries != documents)
    assert_same_bits(_floats(embedder.queries("query", TEXTS)), queries)
    assert_same_bits(_floats(embedder.documents("embed", TEXTS)), documents)


def test_prompts_that_are_given_count(prompted_model: str, expected: SentenceTransformer) -> None:
    embedder = TextEmbedder("Plug", model_name=prompted_model, query_prompt="x ", document_prompt="")
    assert_same_bits(_floats(embedder.queries("query", TEXTS)), expected.encode(TEXTS, prompt="x "))
    assert_same_bits(_floats(embedder.documents("embed", TEXTS)), expected.encode(TEXTS, prompt=""))


def test_no_texts(prompted_model: str) -> None:
    assert TextEmbedder("Plug", model_name=prompted_model).documents("embed", []) == []


def test_arguments_reach_the_model(prompted_model: str) -> None:
    embedder = TextEmbedder(
        "Plug",
        model_name=prompted_model,
        model_kwargs={"truncate_dim": 12},
        encode_kwargs={"normalize_embeddings": True, "truncate_dim": 8, "batch_size": 1},
        weight_dtype="int8",
    )
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    expected = model.encode_query(TEXTS, truncate_dim=8, normalize_embeddings=True)
    assert_same_bits(_floats(embedder.queries("query", TEXTS)), expected)
    assert embedder.load().truncate_dim == 12


@pytest.mark.parametrize(
    "options",
    [{"truncate_dim": 8}, {"normalize": True}, {"normalize": False}, {"num_threads": 1}, {"dtype": np.float64}],
    ids=str,
)
def test_options_are_those_of_the_encoder(options: dict[str, Any], prompted_model: str) -> None:
    encoder = SentenceEncoder.from_pretrained(prompted_model, dtype=options.get("dtype", "float32"))
    expected = encoder.encode(TEXTS, prompt_name="query", **{n: x for n, x in options.items() if n != "dtype"})
    embedder = TextEmbedder("Plug", model_name=prompted_model, **options)
    assert_same_bits(_floats(embedder.queries("query", TEXTS)), expected)


def test_options_count_before_arguments_of_encode(prompted_model: str) -> None:
    encode_kwargs = {"truncate_dim": 4, "normalize_embeddings": True}
    embedder = TextEmbedder(
        "Plug", model_name=prompted_model, encode_kwargs=encode_kwargs, truncate_dim=8, normalize=False
    )
    expected = SentenceEncoder.from_pretrained(prompted_model).encode(
        TEXTS, prompt_name="query", truncate_dim=8, normalize=False
    )
    assert_same_bits(_floats(embedder.queries("query", TEXTS)), expected)


def test_formats_inside_model_kwargs_are_deprecated(prompted_model: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"^Plug: model_kwargs\['model_kwargs'\] is deprecated; pass dtype and"):
        former = TextEmbedder(
            "Plug", model_name=prompted_model, model_kwargs={"model_kwargs": {"weight_dtype": "int8"}}
        )
    assert former.load() is TextEmbedder("Plug", model_name=prompted_model, weight_dtype="int8").load()
    with pytest.raises(TypeError, match=r"^Plug: model_kwargs\['model_kwargs'\] must be a dict; got 3"):
        TextEmbedder("Plug", model_name=prompted_model, model_kwargs={"model_kwargs": 3})


def test_equal_descriptions_share_a_model(prompted_model: str) -> None:
    first = TextEmbedder("Plug", model_name=prompted_model, query_prompt="x ")
    second = TextEmbedder("Other", model_name=prompted_model, encode_kwargs={"truncate_dim": 8})
    other = TextEmbedder("Plug", model_name=prompted_model, model_kwargs={"truncate_dim": 8})
    assert first.load() is second.load()
    assert first.load() is not other.load()


def test_a_model_ends_with_the_last_that_needs_it(prompted_model: str) -> None:
    embedder = TextEmbedder("Plug", model_name=prompted_model)
    embedder.load()
    del embedder
    gc.collect()
    Path(prompted_model, "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="Plug"):
        TextEmbedder("Plug", model_name=prompted_model).load()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda embedder: pickle.loads(pickle.dumps(embedder))])
def test_copies_are_descriptions(again: Any, prompted_model: str) -> None:
    embedder = TextEmbedder("Plug", model_name=prompted_model, query_prompt="x ")
    found = embedder.queries("query", TEXTS)
    assert len(pickle.dumps(embedder)) < 1000
    assert again(embedder).queries("query", TEXTS) == found
    assert again(embedder).settings == embedder.settings


def test_the_description_is_the_embedders_own(prompted_model: str) -> None:
    kwargs: dict[str, Any] = {"prompts": {"query": "x "}}
    embedder = TextEmbedder("Plug", model_name=prompted_model, model_kwargs=kwargs)
    kwargs["prompts"]["query"] = "y "
    assert embedder.settings["model_kwargs"] == {"prompts": {"query": "x "}}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model_name": 3}, TypeError, r"Plug: model_name must be a str; got 3"),
        ({"query_prompt": 3}, TypeError, r"Plug: query_prompt must be a str or None; got 3"),
        ({"document_prompt": b""}, TypeError, r"Plug: document_prompt must be a str or None; got b''"),
        ({"model_kwargs": "int8"}, TypeError, r"Plug: model_kwargs must be a dict; got 'int8'"),
        ({"encode_kwargs": []}, TypeError, r"Plug: encode_kwargs must be a dict; got \[\]"),
        ({"encode_kwargs": {"device": "cuda"}}, ValueError, r"^Plug: .*device.* must be 'cpu'.*; got 'cuda'"),
        ({"encode_kwargs": {"batch_size": 0}}, ValueError, r"^Plug: .*batch_size.* must be .*; got 0"),
        ({"prompt_name": "query"}, TypeError, r"^Plug: got an unexpected keyword argument 'prompt_name'"),
        ({"dtype": object()}, TypeError, r"^Plug: dtype must be a dtype or the name of one; got"),
        ({"encode_kwargs": {"precision": "int8"}}, ValueError, r"encode_kwargs may have batch_size.*; got precision"),
        ({"model_kwargs": {"device": object()}}, TypeError, r"arguments must be values of JSON: .*object"),
    ],
)
def test_mistakes_name_the_argument(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TextEmbedder("Plug", **({"model_name": "model"} | arguments))


def test_mistakes_of_the_model_name_the_users_class(prompted_model: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^Plug"):
        TextEmbedder("Plug", model_name=str(tmp_path / "none")).load()
    with pytest.raises(ValueError, match=r"^Plug: .*cuda"):
        TextEmbedder("Plug", model_name=prompted_model, model_kwargs={"device": "cuda"}).load()
    with pytest.raises(TypeError, match=r"^Plug\.embed: texts must be str; got int at 1"):
        TextEmbedder("Plug", model_name=prompted_model).documents("embed", ["dog", 3])  # type: ignore[list-item]


def test_a_missing_package_is_named() -> None:
    message = r"^module: needs the package pack: pip install pack \(No module named"
    with pytest.raises(ImportError, match=message), needed_package("module", "pack", "extra"):
        import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(
    ("module", "imported", "package"),
    [
        ("chroma", "chromadb.utils.embedding_functions", "chromadb"),
        ("haystack", "haystack", "haystack-ai"),
        ("langchain", "langchain_core.embeddings", "langchain-core"),
        ("llama_index", "llama_index.core.base.embeddings.base", "llama-index-core"),
        ("jax", "jax", "jax"),
    ],
)
def test_a_plug_without_its_package_says_what_to_install(
    module: str, imported: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, imported, None)
    name = f"mha_native.interop.{module}"
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    message = rf"^mha_native\.interop\.{module}: needs the package {package}: pip install {package} \("
    with pytest.raises(ImportError, match=message):
        importlib.import_module(name)
