"""The page of the server in a headless Chromium: its boxes, its key, and its policy."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")
pytest.importorskip("soundfile")
pytest.importorskip("soxr")

import numpy as np
import tiny_bert
import tiny_classifiers
import tiny_language_model
import tiny_whisper
from http_server import Running, running

from mha_native.server import Config
from mha_native.serving._paged_caches import PagedCaches

WIDTHS = (1280, 420)
HARMFUL = '<img src="x" onerror="window.harmed = 1">'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {
        "minilm": tiny_bert.write(home / "minilm"),
        "reranker": tiny_classifiers.write(home / "reranker", labels=1),
        "topics": tiny_classifiers.write(home / "topics", labels=3),
        "writer": tiny_language_model.write(home / "writer", n_positions=800),
        "hearer": tiny_whisper.write(home / "hearer"),
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    with running(Config(models, api_keys=("secret",), root_path="/models", max_new_tokens=20)) as found:
        yield found


def test_the_page_is_for_browsers_only(server: Running) -> None:
    page = server.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage", page.text)
    assert server.client.get("/").json() == {"status": "ok"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs the program chromium")
    with playwright.sync_playwright() as found:
        chromium = found.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_boxes_of_the_page(
    server: Running, models: dict[str, Path], browser: Any, width: int, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{server.url}/models/")
    page.get_by_text("A key is needed").wait_for()
    complaints.clear()  # the browser tells of status 401, too
    page.get_by_label("Key").fill("secret")
    page.get_by_label("Key").press("Enter")
    page.get_by_label("Key").blur()
    page.get_by_role("heading", name="Embed").wait_for()
    rows = page.locator("#models tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == list(models)

    def send(form: str, **fields: str) -> Any:
        for name, value in fields.items():
            page.locator(f"#{form} [name={name}]").fill(value)
        page.locator(f"#{form} button").first.click()
        found = page.locator(f"section:has(#{form}) output .note")
        found.first.wait_for()
        return page.locator(f"section:has(#{form}) output")

    embedded = send("embed", texts=f"the dog\na cat\n{HARMFUL}")
    assert "3 \N{MULTIPLICATION SIGN} 24 features" in embedded.inner_text()
    assert embedded.locator("canvas").count() == 3
    found = send("search", texts=f"the cat\nthe dog\n{HARMFUL}", query="the dog")
    hits = found.locator(".hit")
    assert hits.first.inner_text().split("\n") == ["the dog", "1.000"]
    assert HARMFUL in found.inner_text()
    ranked = send("rerank", texts=f"a dog\n{HARMFUL}", query="hungry").locator(".hit")
    scores = [float(text.split("\n")[1]) for text in ranked.all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    page.locator("#labels button").click()
    page.locator("section:has(#labels) .hit").nth(2).wait_for()
    # The tiny model has words of its own.
    page.locator("#chat [name=text]").fill(HARMFUL)
    page.locator("#chat button").first.click()
    page.locator("section:has(#chat) output .note").wait_for()
    assert page.locator(".said.user").inner_text() == HARMFUL
    assert page.locator(".said.assistant").count() == 1
    assert page.locator("#chat [name=text]").input_value() == ""
    page.get_by_role("button", name="New").click()
    assert page.locator(".said").count() == 0
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
    assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
    with wave.open(str(tmp_path / "noise.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(3).integers(-9000, 9000, 20_000, np.int16).tobytes())
    page.locator("#transcribe [name=file]").set_input_files(tmp_path / "noise.wav")
    page.locator("#transcribe button").click()
    page.get_by_text("2 s of sound").wait_for()
    # An answer of the server in the place of a model is an error in words.
    page.locator("#search [name=texts]").fill("a\n" * 300)
    page.locator("#search button").click()
    page.get_by_text("at most 256 texts").wait_for()
    assert [each for each in complaints if "400" not in each] == []
    place = Path(os.environ.get("MHA_NATIVE_SCREENSHOTS", tmp_path))
    page.screenshot(path=place / f"page_{width}.png", full_page=True)
    page.close()


def test_a_stream_that_is_stopped(server: Running, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, is_open = PagedCaches.read, threading.Semaphore(12)

    def waiting(*arguments: Any) -> Any:
        assert is_open.acquire(timeout=60)
        return read(*arguments)

    monkeypatch.setattr(PagedCaches, "read", waiting)
    page = browser.new_page()
    page.goto(f"{server.url}/models/")
    page.get_by_label("Key").fill("secret")
    page.get_by_label("Key").blur()
    page.locator("#chat").wait_for()
    page.locator("#chat button").first.click()
    page.locator(".said.assistant").filter(has_text=re.compile(r"\S")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()
    batcher = server.service.engines["writer"].batcher
    end = time.monotonic() + 60
    while batcher.statistics.running:
        is_open.release()
        assert time.monotonic() < end
        time.sleep(0.01)
    is_open.release(100)  # of a step that is still there
    page.close()
