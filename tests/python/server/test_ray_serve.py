"""Replicas of a server on Ray Serve, on this machine. `.ci/run` installs ray[serve] for this file alone."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import http_server  # noqa: F401  skips without the packages of a server
import httpx
import served_models

from mha_native.models import CausalLM, SentenceEncoder
from mha_native.server import Config

# What Ray reads as it is imported and as it starts. Nothing goes to the network.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_SERVE_LOG_TO_STDERR": "0"}
# Otherwise a proxy that is not ready after 5 s is killed, and one that does not answer for 10 s, on a busy machine too.
os.environ |= {f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S": "120" for name in ("READY", "HEALTH")}

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray
ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve", exc_type=ImportError)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return served_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def url(models: dict[str, Path]) -> Iterator[str]:
    """Two replicas behind a proxy."""
    from mha_native.server.ray_serve import deployment

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, handler)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(deployment(Config(models), replicas=2), name="models", logging_config={"log_level": "ERROR"})
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, trust_env=False)


def replicas() -> list[str]:
    """The names of the actors of replicas."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in names if name.startswith("SERVE_REPLICA") and "mha_native" in name]


def counts(server: httpx.Client) -> dict[str, float]:
    """The embeddings that each of two replicas has answered, by the time at which its metrics began.

    Two processes may begin in the same hundredth of a second, which is the resolution of their own time.
    """
    found: dict[str, float] = {}
    end = time.monotonic() + 60
    while len(found) < 2:
        assert time.monotonic() < end
        told = server.get("/metrics").text
        (start,) = re.findall(r"^mha_native_http_request_seconds_created (.+)$", told, re.M)
        number = re.findall(r'^mha_native_http_requests_total{path="/v1/embeddings",status="200"} (.+)$', told, re.M)
        found[start] = float(number[0]) if number else 0.0
    return found


def test_replicas_give_the_same_bytes(url: str, models: dict[str, Path]) -> None:
    expected = SentenceEncoder.from_pretrained(models["embed"]).encode("the hungry dog")
    chat = {"model": "text", "messages": [{"role": "user", "content": "the"}], "max_tokens": 6, "seed": 5}
    bodies: Counter[bytes] = Counter()
    texts: Counter[str] = Counter()
    with client(url) as server:
        before = counts(server)
        for _ in range(40):
            bodies[server.post("/v1/embeddings", json={"input": "the hungry dog"}).content] += 1
            texts[server.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]] += 1
        answered = [after - before[process] for process, after in counts(server).items()]
        embedding = server.post("/v1/embeddings", json={"input": "the hungry dog"}).json()["data"][0]["embedding"]
        lines = server.post("/v1/chat/completions", json=chat | {"stream": True}).text
    assert len(bodies) == 1
    assert np.array_equal(np.array(embedding, np.float32), expected)
    assert all(answered), answered
    assert sum(answered) == 40
    model = CausalLM.from_pretrained(models["text"])
    assert list(texts) == [model.chat(chat["messages"], max_new_tokens=6, temperature=1.0, seed=5)]
    assert lines.endswith("data: [DONE]\n\n")


def test_no_request_is_lost_with_a_replica(url: str, models: dict[str, Path]) -> None:
    asked = [f"the dog {word}" for word in "abcdefghijklmnopqrstuvwxyz"] * 8
    expected = SentenceEncoder.from_pretrained(models["embed"]).encode(asked)
    before, failed, under_way = set(replicas()), Counter[Any](), threading.Event()
    is_killed = threading.Event()

    def embedding(text: str) -> np.ndarray[Any, Any]:
        with client(url) as server:
            num_failed = 0
            while num_failed < 200:
                try:
                    found = server.post("/v1/embeddings", json={"input": text})
                    status: Any = found.status_code
                except httpx.TransportError as error:
                    status = type(error).__name__
                if status == 200:
                    under_way.set()
                    if not is_killed.is_set():
                        continue  # so that requests are under way all the time
                    return np.array(found.json()["data"][0]["embedding"], np.float32)
                assert not isinstance(status, int) or status >= 500
                failed[status] += 1
                num_failed += 1
                time.sleep(0.05)
        raise AssertionError(f"no answer: {failed}")

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(embedding, text) for text in asked]
        assert under_way.wait(60)
        begin = time.monotonic()
        try:
            ray.kill(ray.get_actor(min(before), namespace="serve"))
            assert not any(answer.done() for answer in answers)
        finally:
            is_killed.set()
        found = [answer.result() for answer in answers]
    assert np.array_equal(found, expected)
    while len(replicas()) < 2 or min(before) in replicas():  # another takes its place
        assert time.monotonic() - begin < 180
        time.sleep(0.1)
    print(f"failed before their retries: {dict(failed)}; a new replica after {time.monotonic() - begin:.1f} s")


def test_arguments_of_a_deployment(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from mha_native.server.ray_serve import deployment

    options = deployment(
        Config(models), replicas=(1, 3), num_cpus=2, target_requests=9, autoscaling_config={"upscale_delay_s": 2.0}
    )._bound_deployment
    assert options.ray_actor_options["num_cpus"] == 2
    scale = options._deployment_config.autoscaling_config
    assert (scale.min_replicas, scale.max_replicas, scale.target_ongoing_requests) == (1, 3, 9)
    assert scale.upscale_delay_s == 2
    monkeypatch.setenv("MHA_NATIVE_SERVE_MODELS", f"mine={models['embed']}")
    example = Path(__file__).resolve().parents[3] / "examples" / "serve" / "on_ray.py"
    bound = runpy.run_path(str(example))["application"]._bound_deployment
    assert bound._deployment_config.autoscaling_config.max_replicas == 4
    for wrong in (0, (2, 1), (1, 2, 3)):
        with pytest.raises(ValueError, match="replicas"):
            deployment(Config(models), replicas=wrong)  # type: ignore[arg-type]


def test_a_replica_without_its_model_does_not_start(url: str) -> None:
    from mha_native.server.ray_serve import deployment

    with pytest.raises(RuntimeError, match="broken"):
        serve.run(
            deployment(Config({"none": "/nowhere/model"}), name="broken", max_constructor_retry_count=1),
            name="broken",
            route_prefix="/broken",
        )
    serve.delete("broken")
