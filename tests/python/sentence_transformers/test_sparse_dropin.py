"""`SparseEncoder`, the drop-in, against the class of sentence-transformers: plain models and inference-free queries."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_sparse
from tiny_sparse import TEXTS
from tolerance import assert_close

from mha_native.models import SparseEmbeddings
from mha_native.models import SparseEncoder as Encoder
from mha_native.sentence_transformers import SparseEncoder

# Of the other package: its statistics use CSR tensors, and its cosines make tensors.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module", params=["splade", "router"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_sparse.write(folder, with_router=request.param == "router", prompts={"query": "the ", "passage": "a "})


@pytest.fixture
def pair(home: Path) -> Any:
    """The same model in both packages."""
    return SparseEncoder(home), library.SparseEncoder(str(home), device="cpu")


def _assert_same(actual: Any, expected: Any) -> None:
    """Compare tensors, or lists of them: the same indices, and numbers within 1e-5."""
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            _assert_same(one, other)
        return
    assert (actual.layout, actual.shape, actual.dtype) == (expected.layout, expected.shape, expected.dtype)
    if actual.is_sparse:
        actual, expected = actual.coalesce(), expected.coalesce()
        assert torch.equal(actual.indices(), expected.indices())
        actual, expected = actual.values(), expected.values()
    assert_close(actual.numpy(), expected.numpy(), 1e-5, label="embeddings")


@pytest.mark.parametrize("options", [
    {}, {"convert_to_tensor": False}, {"convert_to_sparse_tensor": False}, {"max_active_dims": 3},
    {"convert_to_tensor": False, "convert_to_sparse_tensor": False, "batch_size": 2},
    {"prompt": "dog ", "save_to_cpu": True, "device": "cpu"}, {"prompt_name": "passage", "show_progress_bar": True},
])  # fmt: skip
def test_encode(pair: Any, options: dict[str, Any]) -> None:
    ours, theirs = pair
    for name in ("encode", "encode_query", "encode_document"):
        for texts in (TEXTS, TEXTS[2], []):
            _assert_same(getattr(ours, name)(texts, **options), getattr(theirs, name)(texts, **options))
    for task in ("query", "document"):
        _assert_same(ours.encode(TEXTS, task=task, **options), theirs.encode(TEXTS, task=task, **options))


def test_scores_and_statistics(pair: Any) -> None:
    ours, theirs = pair
    queries, documents = theirs.encode_query(TEXTS[:3]), theirs.encode_document(TEXTS)
    assert ours.similarity_fn_name == "dot"
    for name in ("dot", "cosine", "euclidean", "manhattan"):
        ours.similarity_fn_name = theirs.similarity_fn_name = name
        for one, other in ((queries, documents), (queries[0], documents.to_dense()), (list(queries), documents)):
            expected = theirs.similarity(one, other)
            actual = ours.similarity(one, other)
            bound = 3e-4 if name == "euclidean" else 1e-5  # theirs is a difference of squares
            assert_close(actual.numpy(), expected.numpy(), bound * float(expected.abs().max()), label=name)
            rankings = [torch.argsort(scores.float(), dim=-1, descending=True) for scores in (actual, expected)]
            assert torch.equal(*rankings) or name in ("euclidean", "manhattan")
        others = torch.stack([documents[i] for i in (1, 2, 0)])
        expected = theirs.similarity_pairwise(queries, others)
        assert_close(ours.similarity_pairwise(queries, others).numpy(), expected.numpy(), 1e-4, label=name)
    for embeddings in (queries, queries[0], documents.to_dense()):
        statistics = theirs.sparsity(embeddings)
        assert ours.sparsity(embeddings) == pytest.approx(statistics, abs=1e-6)
        for top_k in (None, 2):
            assert ours.decode(embeddings, top_k) == theirs.decode(embeddings, top_k)
        _assert_same(ours.intersection(queries[1], embeddings), theirs.intersection(queries[1], embeddings))


def test_settings(pair: Any, tmp_path: Path) -> None:
    ours, theirs = pair
    theirs.encode("the dog")  # after which its pooling knows the number of features
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert ours.max_seq_length == theirs.max_seq_length
    assert ours.prompts == theirs.prompts
    assert ours.max_active_dims is theirs.max_active_dims is None
    _assert_same(pickle.loads(pickle.dumps(ours)).encode_query(TEXTS), theirs.encode_query(TEXTS))
    theirs.max_active_dims = 4
    theirs.save_pretrained(str(tmp_path), create_model_card=False)
    theirs.max_active_dims = None
    again = SparseEncoder(tmp_path, similarity_fn_name="cosine", prompts={"query": "dog "})
    other = library.SparseEncoder(str(tmp_path), similarity_fn_name="cosine", prompts={"query": "dog "}, device="cpu")
    assert (again.max_active_dims, again.similarity_fn_name) == (4, "cosine")
    _assert_same(again.encode_query(TEXTS), other.encode_query(TEXTS))
    again.max_active_dims = other.max_active_dims = 2
    again.max_seq_length = other.max_seq_length = 4
    _assert_same(again.encode_document(TEXTS), other.encode_document(TEXTS))
    assert "task" in ours.get_model_kwargs() or not ours._encoder.tasks


def test_without_torch(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair
    expected = ours.encode_document(TEXTS).to_dense().numpy()
    monkeypatch.setitem(sys.modules, "torch", None)
    found = ours.encode_document(TEXTS)
    assert isinstance(found, SparseEmbeddings)
    np.testing.assert_array_equal(found.to_dense(), expected)
    np.testing.assert_array_equal(ours.encode_document(TEXTS, convert_to_sparse_tensor=False), expected)
    assert [part.num_texts for part in ours.encode_document(TEXTS, convert_to_tensor=False)] == [1] * len(TEXTS)
    assert_close(ours.similarity(found, found), expected @ expected.T, 1e-4, label="scores")
    assert ours.intersection(found.texts(2, 3), found).num_texts == len(TEXTS)


def test_refusals(home: Path) -> None:
    ours = SparseEncoder(home)
    for error, message, options in (
        (ValueError, r"SparseEncoder\.encode: a model of this kind has no arguments processing_kwargs",
         {"processing_kwargs": {}}),
        (ValueError, r"SparseEncoder\.encode: device must be 'cpu'", {"device": "cuda"}),
        (ValueError, r"SparseEncoder\.encode: max_active_dims must be at least 1", {"max_active_dims": 0}),
        (ValueError, r"SparseEncoder\.encode: prompt_name must be one of prompts", {"prompt_name": "other"}),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            ours.encode(TEXTS, **options)
    with pytest.raises(TypeError, match=r"SparseEncoder\.encode: inputs must be str; got int at 1"):
        ours.encode(["a", 3])
    with pytest.raises(ValueError, match="modules must be None"):
        SparseEncoder(home, modules=[])
    with pytest.raises(TypeError, match=r"SparseEncoder\.decode: embeddings must be numbers"):
        ours.decode("a")
    with pytest.raises(ValueError, match=r"must have as many features; got [0-9]+ and 2"):
        ours.similarity(ours.encode("the dog"), torch.ones(1, 2))
    if ours._encoder.tasks:
        with pytest.raises(ValueError, match="task must be one of the model, query, document; got 'other'"):
            ours.encode(TEXTS, task="other")


def test_layouts_of_routers(tmp_path: Path) -> None:
    """A router beside the transformer, numbers in idf.json, and routers that are not supported."""
    home = tiny_sparse.write(tmp_path, with_router=True)
    path = home / "router_config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert list(saved["structure"]) == ["query", "document"]
    expected = Encoder.from_pretrained(home).encode_query(TEXTS)
    words = home / saved["structure"]["query"][0]

    # As OpenSearch has it: the transformer is in the folder of the model.
    transformer, pooling = saved["structure"]["document"]
    for file in (home / transformer).iterdir():
        file.rename(home / file.name)
    types = {("" if name == transformer else name): kind for name, kind in saved["types"].items()}
    changed = {"types": types, "structure": saved["structure"] | {"document": ["", pooling]}}
    path.write_text(json.dumps(saved | changed), encoding="utf-8")
    model = Encoder.from_pretrained(home)
    assert model.tasks == ("query", "document")
    np.testing.assert_array_equal(model.encode_query(TEXTS).to_dense(), expected.to_dense())
    theirs = library.SparseEncoder(str(home), device="cpu")
    _assert_same(SparseEncoder(home).encode_document(TEXTS), theirs.encode_document(TEXTS))

    # Numbers in a JSON file.
    tokens = model._tokenizer.library.get_vocab()
    numbers = model._routes.words["query"]._numbers
    idf = {token: float(numbers[place]) for token, place in tokens.items()}
    (words / "idf.json").write_text(json.dumps(idf), encoding="utf-8")
    (words / "config.json").write_text('{"frozen": true, "path": "idf.json"}', encoding="utf-8")
    again = Encoder.from_pretrained(home)
    np.testing.assert_array_equal(again.encode_query(TEXTS).to_dense(), expected.to_dense())
    (words / "idf.json").write_text(json.dumps(idf | {"nowhere": 1.0}), encoding="utf-8")
    with pytest.raises(ValueError, match="'nowhere' must be a token of"):
        Encoder.from_pretrained(home)
    (words / "config.json").write_text('{"path": "../idf.json"}', encoding="utf-8")
    with pytest.raises(ValueError, match="path must be a JSON file in its folder"):
        Encoder.from_pretrained(home)

    def refused(message: str, **changes: Any) -> None:
        path.write_text(json.dumps(saved | changed | changes), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            Encoder.from_pretrained(home)

    parameters = saved["parameters"]
    structure = changed["structure"]
    refused("route_mappings must be absent", parameters=parameters | {"route_mappings": {"('query', None)": "query"}})
    refused("default_route must be one of query, document", parameters=parameters | {"default_route": "text"})
    refused("must have one Transformer with one SpladePooling; got 0", structure={"query": structure["query"]})
    refused("structure must have lists of modules in types", structure=structure | {"other": ["missing"]})
    refused("or SparseStaticEmbedding, for each task; got SpladePooling", structure=structure | {"other": [pooling]})
    refused("types must be an object", types=[])
