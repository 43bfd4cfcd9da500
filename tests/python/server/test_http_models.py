"""Several models of every kind on one port, their other names, and models that come and go while the server runs."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import _WorkItem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import tiny_bert
import tiny_classifiers
import tiny_generators
import tiny_language_model
import tiny_sparse
from http_server import Running, running, until

from mha_native.models import SentenceEncoder, Seq2SeqLM, SparseEncoder, TokenClassifier
from mha_native.sentence_transformers import CrossEncoder
from mha_native.server import Config, Model, model_files
from mha_native.server.application import _ENDPOINTS
from mha_native.server.engines import TextEngine
from mha_native.server.process import _settle
from mha_native.serving import EncodeBatcher, _encode_queue

SCORE = "sentence_transformers.cross_encoder.modules.LogitScore"
RANKER = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": SCORE},
    ],
    "1_LogitScore/config.json": {"true_token_id": 20, "false_token_id": 30, "module_input_name": "causal_logits"},
    "config_sentence_transformers.json": {
        "model_type": "CrossEncoder", "prompts": {"web": "Find the page."}, "default_prompt_name": "web"
    },
}  # fmt: skip
PROMPTS = {"prompts": {"query": "a dog ", "document": ""}, "default_prompt_name": None}
T5 = tiny_generators.config("t5", architectures=["T5ForConditionalGeneration"])
DOCUMENTS = ["a dog", "the cat", "food " * 3, "a dog"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    encoder = tiny_bert.write(home / "embed")
    (encoder / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    return {
        "embed": encoder,
        "sparse": tiny_sparse.write_files(home / "sparse"),
        "entities": tiny_classifiers.write(home / "entities", tokens=True),
        "judge": tiny_language_model.write(home / "judge", RANKER, n_positions=200),
        "write": tiny_language_model.write(home / "write", n_positions=200),
        "translate": tiny_generators.write(home / "translate", T5),
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    given = {**models, "quantized": Model(models["embed"], weight_dtype="int8", prompt_name="query")}
    config = Config(given, aliases={"gpt-4": "write"}, any_model_name=True, root_path="/models")
    with running(config) as found:
        yield found


def test_every_kind_of_model_has_its_endpoints(server: Running, models: dict[str, Path]) -> None:
    post = server.client.post
    kinds = {entry["id"]: entry["kind"] for entry in server.client.get("/models/v1/models").json()["data"]}
    assert kinds == {
        "embed": "embedding", "sparse": "sparse", "entities": "token-classifier", "judge": "reranker",
        "write": "generator", "translate": "seq2seq", "quantized": "embedding",
    }  # fmt: skip
    entities, text = TokenClassifier.from_pretrained(models["entities"]), "the dog a b c"
    for path in ("/predict?model=entities", "/?model=entities"):
        for given in (text, [text, "a"]):
            body = {"inputs": given, "parameters": {"aggregation_strategy": "max", "ignore_labels": []}}
            found = post(path, json=body).json()
            expected = entities(given, aggregation_strategy="max", ignore_labels=[])
            assert found == json.loads(json.dumps(expected, default=float))
    ranker = CrossEncoder(models["judge"])
    pairs = [("hungry", document) for document in DOCUMENTS]
    logits = ranker.predict(pairs, activation_fn=lambda values: values)
    raw = post("/rerank", json={"query": "hungry", "texts": DOCUMENTS, "raw_scores": True}).json()
    assert {entry["index"]: entry["score"] for entry in raw} == dict(enumerate(logits.tolist()))
    ranked = post("/v2/rerank", json={"query": "hungry", "documents": DOCUMENTS}).json()
    scores = [entry["relevance_score"] for entry in sorted(ranked["results"], key=lambda entry: entry["index"])]
    np.testing.assert_allclose(scores, ranker.predict(pairs), rtol=1e-6)
    with EncodeBatcher(ranker) as batcher:
        assert batcher.submit(pairs).result().tobytes() == ranker.predict(pairs).tobytes()
    whole = {"query": "a", "texts": ["a " * 300], "truncate": False}
    assert post("/rerank", json=whole).status_code == 422
    translator = Seq2SeqLM.from_pretrained(models["translate"])
    body = {"model": "translate", "prompt": ["the dog", "a"], "max_tokens": 7, "num_beams": 2, "temperature": 0}
    found = post("/v1/completions", json=body).json()
    written = translator.generate_tokens(["the dog", "a"], max_new_tokens=7, num_beams=2)
    assert [choice["text"] for choice in found["choices"]] == translator.generate(
        ["the dog", "a"], max_new_tokens=7, num_beams=2
    )
    assert found["usage"]["completion_tokens"] == sum(len(each.tokens) for each in written)
    assert found["usage"]["prompt_tokens"] == translator.count_tokens(["the dog", "a"]).sum()
    streamed = post("/v1/completions", json=body | {"stream": True}).text.split("\n\n")
    assert [json.loads(line[6:])["choices"][0]["text"] for line in streamed[:-2]] == [
        choice["text"] for choice in found["choices"]
    ]
    assert streamed[-2:] == ["data: [DONE]", ""]


def test_names_and_prompts_of_models(server: Running, models: dict[str, Path]) -> None:
    post, encoder = server.client.post, SentenceEncoder.from_pretrained(models["embed"])
    body = {"prompt": "the", "max_tokens": 3, "temperature": 0}
    texts = {
        name: post("/v1/completions", json=body | {"model": name}).json()["choices"][0]["text"]
        for name in ("write", "gpt-4")
    }
    assert len(set(texts.values())) == 1
    any_name = post("/v1/rerank", json={"model": "rerank-v3.5", "query": "a", "documents": ["a"]})
    assert any_name.json()["model"] == "judge"
    assert post("/v1/embeddings", json={"model": "other", "input": "a"}).status_code == 404  # there are two
    quantized = SentenceEncoder.from_pretrained(models["embed"], weight_dtype="int8")
    for asked, prompt_name in (({}, "query"), ({"prompt_name": "document"}, "document")):
        found = post("/embed?model=quantized", json={"inputs": "a cat", **asked}).json()
        expected = quantized.encode(["a cat"], normalize=True, prompt_name=prompt_name)
        assert np.array_equal(np.array(found, np.float32), expected)
    # A prompt counts: cuts of the text after it are refused, too.
    room = encoder.max_length - encoder.count_tokens("", prompt_name="query")
    for count, status in ((room, 200), (room + 1, 422)):
        body = {"inputs": "a " * count, "truncate": False, "prompt_name": "query"}
        assert post("/embed?model=embed", json=body).status_code == status
    rows = post("/embed_all?model=embed", json={"inputs": ["a dog", "cat"], "prompt_name": "query"}).json()
    for row, (_, one) in zip(rows, encoder.encode_to_rows(["a dog", "cat"], prompt_name="query"), strict=True):
        assert np.array_equal(np.array(row, np.float32), one)
    tokens = post("/tokenize?model=embed", json={"inputs": "cat " * 50, "prompt_name": "query"}).json()[0]
    assert len(tokens) == 2 + 2 + 50  # of whole texts, after the prompt
    ids = [token["id"] for token in tokens]
    for given in (ids, [ids]):
        (decoded,) = post("/decode?model=embed", json={"ids": given}).json()
        assert decoded.startswith("[CLS] a dog cat cat")
    begin, letter = tiny_language_model.BEGIN, tiny_language_model.tokenizer().token_to_id("a")
    for skips, expected in ((True, "a"), (False, "<|begin|>a")):
        body = {"ids": [begin, letter], "skip_special_tokens": skips}
        assert post("/decode?model=write", json=body).json() == [expected]
    facts = server.client.get("/info?model=embed").json()
    assert facts["model_type"] == {"embedding": {"pooling": "mean"}}
    assert server.client.get("/v2/models/write/ready").json() == {"name": "write", "ready": True}
    assert server.client.get("/v2/models/none/ready").status_code == 404


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/v1/completions", {"model": "translate", "prompt": "a", "temperature": 0.5}, 400, "temperature"),
    ("/v1/completions", {"model": "translate", "prompt": "a", "n": 2}, 400, "n: is not"),
    ("/v1/completions", {"model": "translate", "prompt": "a", "stop": ["a"]}, 400, "stop"),
    ("/v1/completions", {"model": "translate", "prompt": "a", "num_beams": 0}, 400, "num_beams"),
    ("/v1/completions", {"model": "translate", "prompt": [10**9]}, 400, "prompt"),
    ("/v1/completions", {"model": "write", "prompt": "a", "num_beams": 2}, 400, "encoder-decoder"),
    ("/v1/chat/completions", {"model": "translate", "messages": [{"role": "user", "content": "a"}]}, 400, "seq2seq"),
    ("/embed_sparse?model=embed", {"inputs": "a"}, 424, "sparse"),
    ("/embed_sparse", {"inputs": [[1, 2]]}, 422, "inputs"),
    ("/embed_sparse", {"inputs": "a", "task": "other"}, 422, "task must be one of the model"),
    ("/embed_sparse", {"inputs": "a", "prompt_name": "other"}, 422, "prompt_name"),
    ("/embed_sparse", {"inputs": "a " * 30, "truncate": False}, 422, "at most 20 tokens"),
    ("/predict?model=entities", {"inputs": "a", "raw_scores": True}, 422, "raw_scores"),
    ("/predict?model=entities", {"inputs": "a", "parameters": {"top_k": 1}}, 422, "top_k"),
    ("/predict?model=entities", {"inputs": "a", "parameters": {"aggregation_strategy": "x"}}, 422, "strategy"),
    ("/predict?model=entities", {"inputs": [5]}, 422, "inputs[0]"),
    ("/tokenize?model=judge", {"inputs": "a"}, 424, "no tokenizer"),
    ("/tokenize?model=write", {"inputs": "a", "prompt_name": "x"}, 422, "prompt_name"),
    ("/tokenize?model=embed", {"inputs": "a", "prompt_name": "x"}, 422, "document"),
    ("/decode?model=embed", {"ids": [10**9]}, 422, "ids[0]"),
    ("/decode?model=embed", {"ids": [[1], 2]}, 422, "ids[1]"),
    ("/decode?model=embed", {"ids": []}, 400, "ids"),
    ("/embed_all?model=embed", {"inputs": [[1, 2]]}, 422, "inputs"),
]


def test_sparse_embeddings(server: Running, models: dict[str, Path]) -> None:
    model = SparseEncoder.from_pretrained(models["sparse"])
    texts = ["the dog", "a cat !", "dog " * 40]
    for task, prompt_name in ((None, None), ("document", None), ("query", "query")):
        body = {"inputs": texts, "task": task, "prompt_name": prompt_name}
        found = server.client.post("/embed_sparse", json=body).json()
        expected = model.encode(texts, task=task, prompt_name=prompt_name)
        for i, row in enumerate(found):
            indices, values = expected.row(i)
            assert [entry["index"] for entry in row] == indices.tolist()
            np.testing.assert_array_equal(np.array([entry["value"] for entry in row], np.float32), values)
    assert len(server.client.post("/embed_sparse", json={"inputs": "the dog"}).json()) == 1
    assert server.client.get("/info?model=sparse").json()["model_type"] == {"embedding": {"pooling": "splade"}}


def test_refused_requests(server: Running) -> None:
    for path, body, status, words in REFUSED:
        found = server.client.post(path, json=body)
        assert (found.status_code, words in found.text) == (status, True), (path, body, found.text)
    cohere = server.client.post("/v2/rerank", json={"query": "a", "documents": []}, headers={"x-request-id": "r1"})
    assert (cohere.json()["id"], cohere.json()["message"]) == ("r1", cohere.json()["error"]["message"])
    for headers in ({"content-encoding": "gzip"}, {"content-type": "multipart/form-data; boundary=a"},
                    {"content-type": "application/json; charset=latin-1"}):  # fmt: skip
        found = server.client.post("/embed", content=b'{"inputs": "a"}', headers=headers)
        assert (found.status_code, found.json()["error_type"]) == (415, "Validation")
    assert server.client.post("/admin/models/embed").status_code == 404  # without a key for it


@pytest.fixture
def copies(models: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {name: Path(shutil.copytree(models[name], tmp_path / name)) for name in ("embed", "write")}


def _embedding(server: Running, name: str = "embed") -> Any:
    found = server.client.post("/v1/embeddings", json={"input": "a dog", "model": name})
    return np.array(found.json()["data"][0]["embedding"], np.float32)


def test_models_come_and_go(
    copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, is_open, results_of = threading.Event(), threading.Event(), _encode_queue.results_of
    is_open.set()

    def waiting(*arguments: Any) -> Any:
        entered.set()
        assert is_open.wait(20)
        return results_of(*arguments)

    monkeypatch.setattr(_encode_queue, "results_of", waiting)
    config = Config({"embed": copies["embed"]}, admin_key="secret", api_keys=("key",))
    key = {"authorization": "Bearer key"}
    with running(config) as server, ThreadPoolExecutor(1) as pool:
        server.client.headers.update(key)
        admin = {"authorization": "Bearer secret"}

        def load(name: str, status: int = 200, **body: Any) -> Any:
            found = server.client.post(f"/admin/models/{name}", json=body, headers=admin)
            assert found.status_code == status, found.text
            return found.json()

        assert server.client.post("/admin/models/embed").status_code == 401  # by the key of clients
        before, old = _embedding(server), server.service.engines["embed"]
        # Another model in the place of the old one, which ends its request.
        is_open.clear()
        entered.clear()
        running_one = pool.submit(_embedding, server)
        assert entered.wait(20)
        loading = threading.Timer(0.3, is_open.set)  # the warm-up of the new model also waits
        loading.start()
        loaded = load("embed", path=str(copies["embed"]), weight_dtype="int8")
        assert (loaded["weight_dtype"], loaded["id"]) == ("int8", "embed")
        assert np.array_equal(running_one.result(20), before)
        assert server.client.get("/ready").status_code == 200
        assert not np.array_equal(_embedding(server), before)
        assert server.service.engines["embed"] is not old
        # A model that cannot be opened changes nothing.
        after = _embedding(server)
        assert "config.json" in load("embed", 400, path=str(copies["embed"] / "none"))["error"]["message"]
        assert "kind" in load("embed", 400, path=str(copies["embed"]), kind="x")["error"]["message"]
        assert "path" in load("embed", 400, weight_dtype="int8")["error"]["message"]
        assert "path" in load("new", 400)["error"]["message"]
        with monkeypatch.context() as patch:
            patch.setattr(model_files, "_free_bytes", lambda: 1000)
            assert "MB" in load("embed", 503)["error"]["message"]
        assert np.array_equal(_embedding(server), after)
        # A new model, and the same one again.
        assert load("new", path=str(copies["write"]))["kind"] == "generator"
        assert load("new")["kind"] == "generator"
        assert server.client.delete("/admin/models/embed", headers=admin).json()["deleted"] is True
        assert [entry["id"] for entry in server.client.get("/v1/models").json()["data"]] == ["new"]
        for name, status in (("new", 400), ("embed", 404)):
            assert server.client.delete(f"/admin/models/{name}", headers=admin).status_code == status

        # The configuration is read again: other keys, files that have changed, and models that are there or not.
        def reload(config: Config) -> None:
            asyncio.run_coroutine_threadsafe(server.service.reload(config), server.loop).result(20)

        reload(Config({"embed": copies["embed"], "bad": copies["embed"] / "none"}, api_keys=("other",)))
        assert "bad could not be opened" in caplog.text
        assert server.client.get("/v1/models").status_code == 401
        server.client.headers["authorization"] = "Bearer other"
        assert np.array_equal(_embedding(server), before)
        engine, kept = server.service.engines["embed"], Config({"embed": copies["embed"]}, api_keys=("other",))
        reload(kept)
        assert server.service.engines["embed"] is engine  # nothing has changed
        path = copies["embed"] / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))
        reload(kept)
        assert not np.array_equal(_embedding(server), before)
        path.write_text("{")
        reload(kept)
        assert "stays as it was" in caplog.text
        assert _embedding(server).shape == before.shape


def test_a_model_ends_once_and_a_failed_one_leaves_no_thread(
    copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Config(dict.fromkeys(("one", "two", "four"), copies["embed"]), admin_key="secret")) as server:
        threads = set(threading.enumerate())
        with monkeypatch.context() as patch:
            patch.setattr(TextEngine, "warm_up", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                asyncio.run_coroutine_threadsafe(
                    server.service.open("three", Model(copies["write"])), server.loop
                ).result(20)
        left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio")]
        assert (left, list(server.service.engines)) == ([], ["one", "two", "four"])

        lock = server.service._lock
        asyncio.run_coroutine_threadsafe(lock.acquire(), server.loop).result(20)
        with ThreadPoolExecutor(2) as pool:  # both wait for the lock
            headers = {"authorization": "Bearer secret"}
            ended = [pool.submit(server.client.delete, "/admin/models/one", headers=headers) for _ in range(2)]
            while len(lock._waiters or ()) < 2 and not any(each.done() for each in ended):
                time.sleep(0.01)
            server.loop.call_soon_threadsafe(lock.release)
            assert sorted(each.result().status_code for each in ended) == [200, 404]
        assert list(server.service.engines) == ["two", "four"]


def test_a_model_that_has_ended_is_freed(copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a model of text, whose queue calls the server; a model that a collection alone finds, before it is frozen;
    and one that the thread of the executor keeps a moment longer than its call."""
    run = _WorkItem.run

    def run_and_keep(item: _WorkItem) -> None:
        run(item)
        time.sleep(0.1)

    monkeypatch.setattr(_WorkItem, "run", run_and_keep)
    headers = {"authorization": "Bearer secret"}
    with running(Config({"embed": copies["embed"], "write": copies["write"]}, admin_key="secret")) as server:
        server.service.on_models = _settle
        body = {"model": "write", "prompt": "the", "max_tokens": 2}
        assert server.client.post("/v1/completions", json=body).status_code == 200
        old = weakref.ref(server.service.engines["write"])
        assert server.client.post("/admin/models/write", headers=headers).status_code == 200  # in its own place
        engine = server.service.engines["write"]
        while old() in server.service._old:
            time.sleep(0.01)
        assert 'vllm:generation_tokens_total{model_name="write"} 2.0' in server.client.get("/metrics").text
        engine.itself = engine  # type: ignore[union-attr]
        alive = weakref.ref(engine)
        del engine
        try:
            assert server.client.delete("/admin/models/write", headers=headers).status_code == 200
            until(lambda: alive() is None)
            assert "write" not in server.client.get("/metrics").text
        finally:
            gc.unfreeze()


def test_the_description_of_the_server(server: Running) -> None:
    found = server.client.get("/models/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    assert {path.replace(":path}", "}") for path in {each.path for each in _ENDPOINTS}} == set(found["paths"])
    recorded = Path(__file__).parents[2] / "data" / "openapi.json"
    found["info"]["version"] = "0"
    assert json.loads(recorded.read_text()) == found, "record it again if the change is wanted"
