"""Embedders for BERTopic and KeyBERT, as users of these packages call them. Skipped without them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder

pytestmark = pytest.mark.filterwarnings("ignore")

PETS = ["The dog was hungry.", "A puppy slept.", "My cat purrs.", "The kitten chased a dog.", "Cats and dogs eat fish."]
MONEY = [
    "Stocks fell.",
    "The bank raised its rates.",
    "Shares rose sharply.",
    "Investors sold stocks.",
    "Markets fell.",
]


def _import(name: str) -> Any:
    """The plug, of which the package takes seconds to be imported: only in a process that runs such a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name)
        return pytest.importorskip(f"mha_native.interop.{name}")


@pytest.fixture(scope="module")
def encoder(model_directory: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(model_directory)


def _topic_model(embedder: Any) -> Any:
    from bertopic import BERTopic
    from bertopic.representation import KeyBERTInspired
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    return BERTopic(
        embedding_model=embedder,
        umap_model=PCA(n_components=2),
        hdbscan_model=KMeans(n_clusters=2, n_init=5, random_state=0),
        representation_model=KeyBERTInspired(),  # which embeds documents and words
    )


def test_bertopic(model_directory: Path, encoder: SentenceEncoder, tmp_path: Path) -> None:
    module = _import("bertopic")
    embedder = module.Embedder(str(model_directory))
    assert_same_bits(embedder.embed_documents(PETS), encoder.encode(PETS))
    assert_same_bits(embedder.embed_words(words=np.array(["dog", "cat"], object)), encoder.encode(["dog", "cat"]))

    model = _topic_model(embedder)
    topics, _ = model.fit_transform(PETS + MONEY)
    assert topics == [topics[0]] * 5 + [topics[-1]] * 5
    assert topics[0] != topics[-1]
    assert "dogs" in dict(model.get_topic(topics[0])) or "dog" in dict(model.get_topic(topics[0]))
    found, _ = model.transform(["The old dog barked."])
    assert list(found) == [topics[0]]
    assert model.find_topics("finance", top_n=1)[0] == [topics[-1]]

    model.save(tmp_path / "pickled", serialization="pickle")
    assert (tmp_path / "pickled").stat().st_size < 1_000_000  # without the weights, 90 MB
    loaded = type(model).load(str(tmp_path / "pickled"))
    assert list(loaded.transform(MONEY[:1])[0]) == [topics[-1]]

    model.save(tmp_path / "folder", serialization="safetensors", save_ctfidf=True)
    loaded = type(model).load(str(tmp_path / "folder"), embedding_model=embedder)
    assert list(loaded.transform(MONEY[:1])[0]) == [topics[-1]]
    assert str(model_directory) in (tmp_path / "folder" / "config.json").read_text(encoding="utf-8")


def test_bertopic_with_options(model_directory: Path, encoder: SentenceEncoder, capsys: Any) -> None:
    embedder = _import("bertopic").Embedder(model_directory, truncate_dim=64, normalize=True)
    assert_same_bits(embedder.embed(PETS, verbose=True), encoder.encode(PETS, truncate_dim=64, normalize=True))
    assert "Texts" in capsys.readouterr().err
    assert not hasattr(embedder, "_hf_model")  # a path is no name that BERTopic could store


@pytest.mark.parametrize("options", [{}, {"use_mmr": True}, {"use_maxsum": True, "nr_candidates": 6}], ids=str)
def test_keybert(options: dict[str, Any], model_directory: Path, encoder: SentenceEncoder) -> None:
    module = _import("keybert")
    from keybert import KeyBERT
    from keybert.backend import BaseEmbedder

    class Computed(BaseEmbedder):  # type: ignore[misc, unused-ignore]
        def embed(self, documents: Any, verbose: bool = False) -> Any:
            return encoder.encode(list(documents))

    keywords = KeyBERT(model=module.Embedder(model_directory)).extract_keywords(PETS, top_n=2, **options)
    assert keywords == KeyBERT(model=Computed()).extract_keywords(PETS, top_n=2, **options)
    assert all(keywords)


@pytest.mark.parametrize("name", ["bertopic", "keybert"])
def test_mistakes_are_named(name: str, model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = _import(name).Embedder
    with pytest.raises(FileNotFoundError, match=r"^Embedder: the model no/such is not a directory"):
        embedder("no/such")
    with pytest.raises(TypeError, match=r"^Embedder.embed: documents must be .* got str"):
        embedder(model_directory).embed("A dog.")
