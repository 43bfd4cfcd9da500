"""SentenceTransformer has the arguments and results of the class of that name, and refuses what it does not do."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS
from tolerance import assert_same_bits

from mha_native.functions import progress as _progress
from mha_native.models import SentenceEncoder
from mha_native.models.text import batching as _batching
from mha_native.sentence_transformers import SentenceTransformer, SimilarityFunction, quantize_embeddings

SETTINGS = {
    "prompts": {"query": "cat ", "passage": "the dog "},
    "default_prompt_name": "passage",
    "similarity_fn_name": "dot",
    "truncate_dim": 7,
}


@pytest.fixture
def encoder(directory: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(directory)


@pytest.fixture
def with_settings(tmp_path: Path) -> SentenceTransformer:
    """A model that does not scale, with settings in its files."""
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling"),
        "config_sentence_transformers.json": SETTINGS,
    }
    return SentenceTransformer(tiny_bert.write(tmp_path / "settings", files=files))


def test_results_for_one_text_several_and_none(model: SentenceTransformer, encoder: SentenceEncoder) -> None:
    expected = encoder.encode(TEXTS)
    several: list[Any] = [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), iter(TEXTS)]
    for texts in several:
        assert_same_bits(model.encode(texts), expected)
    for i, text in enumerate(TEXTS):
        assert_same_bits(model.encode(text), expected[i])
        assert_same_bits(model.encode([text]), expected[i : i + 1])
    for precision in (None, "float32", "int8"):
        nothing = model.encode([], precision=precision)
        assert (nothing.shape, nothing.dtype) == ((0,), np.float64)
    assert model.encode([], output_value="token_embeddings") == model.encode([], output_value=None) == []


def test_arguments_stand_in_the_order_of_the_other_library() -> None:
    names = list(inspect.signature(SentenceTransformer.encode).parameters)
    assert names == [
        "self", "inputs", "prompt_name", "prompt", "batch_size", "show_progress_bar", "output_value", "precision",
        "convert_to_numpy", "convert_to_tensor", "device", "normalize_embeddings", "truncate_dim", "pool", "chunk_size",
        "kwargs",
    ]  # fmt: skip


def test_what_has_no_effect(model: SentenceTransformer) -> None:
    expected = model.encode(TEXTS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    without_effect: list[dict[str, Any]] = [
        {"batch_size": 1}, {"batch_size": np.int64(64)}, {"device": "cpu"}, {"device": ["cpu", "cpu:0"]},
        {"pool": pool, "chunk_size": 2}, {"task": "query"}, {"show_progress_bar": False}, {"precision": None},
        {"normalize_embeddings": True}, {"truncate_dim": 1000},
    ]  # fmt: skip
    for arguments in without_effect:
        np.testing.assert_allclose(model.encode(TEXTS, **arguments), expected, rtol=1e-6, err_msg=str(arguments))
    assert_same_bits(model.encode_multi_process(TEXTS, pool), expected)
    model.stop_multi_process_pool(pool)
    assert_same_bits(model.encode(sentences=TEXTS), expected)
    assert_same_bits(model.encode(TEXTS, sentences=["other"]), expected)
    assert model.to("cpu") is model.eval() is model.cpu() is model


def test_prompts(with_settings: SentenceTransformer) -> None:
    model = with_settings
    assert model.prompts == {"query": "cat ", "document": "", "passage": "the dog "}
    assert model.default_prompt_name == "passage"

    def plain(text: str) -> Any:
        return model.encode(text, prompt="")

    assert_same_bits(model.encode("a"), plain("the dog a"))
    assert_same_bits(model.encode("a", "query"), plain("cat a"))
    assert_same_bits(model.encode("a", None, "b "), plain("b a"))
    assert_same_bits(model.encode_query("a"), plain("cat a"))
    assert_same_bits(model.encode_document("a"), plain("a"))  # whose prompt is empty
    assert_same_bits(model.encode_query("a", "passage"), plain("the dog a"))
    assert_same_bits(model.encode_document("a", prompt="b "), plain("b a"))
    del model.prompts["document"], model.prompts["query"]
    assert_same_bits(model.encode_document("a"), plain("the dog a"))
    model.prompts["passage"] = "dog "
    assert_same_bits(model.encode_query("a"), plain("dog a"))
    model.default_prompt_name = None
    assert_same_bits(model.encode("a"), plain("a"))
    model.default_prompt_name = "gone"
    with pytest.raises(ValueError, match=r"^SentenceTransformer.encode: default_prompt_name must be .* got 'gone'$"):
        model.encode("a")


def test_a_prompt_comes_before_its_name(model: SentenceTransformer, caplog: pytest.LogCaptureFixture) -> None:
    assert_same_bits(model.encode("a", prompt_name="query", prompt="dog "), model.encode("dog a"))
    assert "prompt_name 'query' has no effect" in caplog.text


def test_given_settings_come_before_those_of_the_files(with_settings: SentenceTransformer, tmp_path: Path) -> None:
    model = SentenceTransformer(
        tmp_path / "settings", prompts={"query": "b ", "text": "c ", "passage": None, "other": None},
        default_prompt_name="text", truncate_dim=3, similarity_fn_name="euclidean",
        processor_kwargs={"model_max_length": 9},
    )  # fmt: skip
    assert model.prompts == {"query": "b ", "document": "", "passage": "the dog ", "text": "c ", "other": ""}
    assert (model.default_prompt_name, model.truncate_dim) == ("text", 3)
    assert (model.similarity_fn_name, model.max_seq_length) == ("euclidean", 9)
    whole = with_settings.encode("c a", prompt="", truncate_dim=24)
    assert_same_bits(model.encode("a"), whole[:3])


def test_truncation_and_normalization(with_settings: SentenceTransformer) -> None:
    model = with_settings
    assert model.truncate_dim == model.get_embedding_dimension() == model.get_sentence_embedding_dimension() == 7
    whole = model.encode(TEXTS, truncate_dim=24)
    assert_same_bits(model.encode(TEXTS), np.ascontiguousarray(whole[:, :7]))
    with model.truncate_embeddings(2):
        assert model.encode("a").shape == (2,)
    model.truncate_dim = None
    assert model.get_embedding_dimension() == 24
    assert_same_bits(model.encode(TEXTS), whole)
    scaled = model.encode(TEXTS, normalize_embeddings=True, truncate_dim=5)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(scaled, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True), rtol=1e-5)


def test_max_seq_length(model: SentenceTransformer, directory: Path) -> None:
    assert model.max_seq_length == model.get_max_seq_length() == 20
    long, other = "a b c d e f g h", SentenceTransformer(directory)
    model.max_seq_length = 6
    assert_same_bits(model.encode(long), model.encode("a b c d"))
    assert not np.array_equal(model.encode(long), other.encode(long))
    model.max_seq_length = 20
    assert_same_bits(model.encode(long), other.encode(long))
    for length, problem in (
        (21, "at most 20"),
        (2, "leave room beside 2 special"),
        (0, "at least 1"),
        ("a", "integer"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^SentenceTransformer: max_seq_length must .*{problem}"):
            model.max_seq_length = length  # type: ignore[assignment]
    assert model.max_seq_length == 20


def test_tokens(model: SentenceTransformer, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 30)
    texts = [*TEXTS, "a b"]
    rows = model.encode(texts, output_value="token_embeddings")
    everything = model.encode(texts, output_value=None, truncate_dim=5)
    for text, of_text, found in zip(texts, rows, everything, strict=True):
        assert found["input_ids"].tolist() == tiny_bert.ids(text)
        assert found["attention_mask"].tolist() == [1] * len(of_text)
        assert_same_bits(found["token_embeddings"], of_text)
        assert_same_bits(found["sentence_embedding"], encoder.encode(text, truncate_dim=5))
        mean = of_text.mean(axis=0)
        np.testing.assert_allclose(mean / np.linalg.norm(mean), encoder.encode(text), rtol=1e-4, atol=1e-6)
    assert_same_bits(model.encode("dog", output_value="token_embeddings"), rows[1])
    assert_same_bits(model.encode("dog", output_value=None, prompt="the ")["token_embeddings"], rows[2])


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precision(precision: Any, model: SentenceTransformer) -> None:
    embeddings = model.encode(TEXTS)
    quantized = model.encode(TEXTS, precision=precision)
    assert_same_bits(quantized, quantize_embeddings(embeddings, precision))
    assert quantized.dtype == (np.int8 if precision in ("int8", "binary") else np.uint8)
    assert quantized.shape == (len(TEXTS), 3 if "binary" in precision else 24)
    if "binary" in precision:
        assert_same_bits(model.encode(TEXTS[3], precision=precision), quantized[3])
    else:
        with pytest.raises(ValueError, match=r"^SentenceTransformer.encode: embeddings must be several"):
            model.encode(TEXTS[3], precision=precision)


def test_similarity(model: SentenceTransformer) -> None:
    a, b = model.encode(TEXTS), model.encode(TEXTS[:3])
    assert model.similarity_fn_name == "cosine"
    np.testing.assert_allclose(model.similarity(a, b), a @ b.T, atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(a[:3], b), np.ones(3), atol=1e-6)
    model.similarity_fn_name = SimilarityFunction.MANHATTAN
    assert model.similarity_fn_name == "manhattan"
    np.testing.assert_allclose(model.similarity(a[0], b[1]), [[-np.abs(a[0] - b[1]).sum()]], rtol=1e-5)
    model.similarity_fn_name = None
    assert model.similarity_fn_name == "cosine"
    with pytest.raises(ValueError, match=r"^SentenceTransformer: similarity_fn_name must be .* got 'maxsim'"):
        model.similarity_fn_name = "maxsim"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(copied: Callable[[Any], Any], with_settings: SentenceTransformer) -> None:
    with_settings.max_seq_length = 6
    with_settings.similarity_fn_name = "euclidean"
    other = copied(with_settings)
    assert vars(other).keys() == vars(with_settings).keys()
    assert repr(other) == repr(with_settings)
    assert (other.prompts, other.similarity_fn_name) == (with_settings.prompts, "euclidean")
    assert_same_bits(other.encode(TEXTS), with_settings.encode(TEXTS))
    other.max_seq_length = 20
    other.prompts["passage"] = "b "
    assert not np.array_equal(other.encode("a"), with_settings.encode("a"))


def test_threads(model: SentenceTransformer) -> None:
    expected = model.encode(TEXTS)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: model.encode(TEXTS), range(20)):
            assert_same_bits(found, expected)


def test_dtypes(directory: Path) -> None:
    class TorchDtype:
        def __str__(self) -> str:
            return "torch.bfloat16"

    expected = SentenceEncoder.from_pretrained(directory, dtype="bfloat16").encode(TEXTS)
    for name in ("dtype", "torch_dtype"):
        for dtype in ("bfloat16", TorchDtype()):
            model = SentenceTransformer(directory, model_kwargs={name: dtype, "attn_implementation": "sdpa"})
            assert_same_bits(model.encode(TEXTS), expected)
    quantized = SentenceEncoder.from_pretrained(directory, weight_dtype="int8").encode(TEXTS)
    assert_same_bits(SentenceTransformer(directory, model_kwargs={"weight_dtype": "int8"}).encode(TEXTS), quantized)
    plain = SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    for same in (None, "auto", "float32", np.float32):
        assert_same_bits(SentenceTransformer(directory, model_kwargs={"dtype": same}).encode(TEXTS), plain)


def test_what_the_constructor_accepts(directory: Path) -> None:
    arguments: list[dict[str, Any]] = [
        {"device": None, "trust_remote_code": True, "local_files_only": True, "token": False, "backend": "torch"},
        {"device": "cpu:0", "cache_folder": "/nowhere", "revision": "main", "model_card_data": object()},
        {"model_kwargs": {"device_map": "cpu", "use_safetensors": True, "low_cpu_mem_usage": True}},
        {"tokenizer_kwargs": {"use_fast": True, "padding_side": "right"}, "config_kwargs": {}, "use_auth_token": "x"},
        {"similarity_fn_name": SimilarityFunction.DOT},
    ]
    for given in arguments:
        SentenceTransformer(model_name_or_path=directory, **given)
    assert SentenceTransformer(directory, tokenizer_kwargs={"model_max_length": 8}).max_seq_length == 8


def test_shapes_of_similarity(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"embeddings1 and embeddings2 must be as many; got \[2, 3\] and \[4, 3\]"):
        model.similarity_pairwise(np.ones((2, 3)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"must be \[N, E\] and \[M, E\]; got \[2, 2, 3\] and \[4, 3\]"):
        model.similarity(np.ones((2, 2, 3)), np.ones((4, 3)))
    assert model.similarity_pairwise(np.ones((2, 3)), np.ones(3)).shape == (2,)


def test_tokenizer(model: SentenceTransformer) -> None:
    tokenizer, text = model.tokenizer, "the dog " * 30
    assert tokenizer.encode(text, truncation=False) == tiny_bert.ids(text, 100)
    assert tokenizer.encode(text, add_special_tokens=False) == tiny_bert.ids(text, 100)[1:-1]
    assert tokenizer.tokenize("the dog") == ["the", "dog"]
    assert tokenizer.decode(np.array(tiny_bert.ids("the dog")[1:-1])) == "the dog"
    assert len(tokenizer) == len(tiny_bert.WORDS)
    assert len(model.encode(text, output_value="token_embeddings")) == 20  # of which another one was copied
    with pytest.raises(ValueError, match=r"^TextTokenizer.encode: truncation must be False; got True"):
        tokenizer.encode(text, truncation=True)


def test_a_model_in_a_cache_folder(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "empty"))
    commit = "0123456789" * 4
    folder = tmp_path / "cache" / "models--org--tiny"
    (folder / "refs" / "pr").mkdir(parents=True)
    (folder / "refs" / "pr" / "1").write_text(commit)
    (folder / "snapshots").mkdir()
    directory.rename(folder / "snapshots" / commit)
    cache = {"cache_folder": tmp_path / "cache", "local_files_only": True}
    for revision in ("pr/1", commit):
        SentenceTransformer("org/tiny", revision=revision, **cache)
    with pytest.raises(FileNotFoundError, match=r"org/tiny is not in the cache .* since local_files_only is set"):
        SentenceTransformer("org/tiny", **cache)
    with pytest.raises(FileNotFoundError, match="revision other of org/tiny is not in the cache"):
        SentenceTransformer("org/tiny", revision="other", **cache)
    for revision in ("../pr/1", "", "/pr/1", 3):
        with pytest.raises(ValueError, match=r"^SentenceTransformer: revision must be a branch, a tag or a commit"):
            SentenceTransformer("org/tiny", revision=revision, **cache)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "cache"))
    SentenceTransformer("org/tiny", revision="pr/1", local_files_only=True)


@pytest.mark.parametrize("has_tqdm", [True, False])
def test_progress(
    has_tqdm: bool, model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_tqdm:
        pytest.importorskip("tqdm")
        words = f"{len(TEXTS)}/{len(TEXTS)}"
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(_progress, "PATIENCE", 0)
        monkeypatch.setattr(_progress, "PAUSE", 0)
        words = f"{len(TEXTS)} texts"
    expected = model.encode(TEXTS)
    monkeypatch.setattr(_batching, "MOST_TOKENS", 30)
    assert capsys.readouterr() == ("", "")
    assert_same_bits(model.encode(TEXTS, show_progress_bar=True), expected)
    assert words in capsys.readouterr().err
    logger = logging.getLogger("mha_native.sentence_transformers")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # of levels
    try:
        model.encode(TEXTS)
        assert words in capsys.readouterr().err
        model.encode(TEXTS, show_progress_bar=False)
        assert model.encode([], show_progress_bar=True).shape == (0,)
        assert capsys.readouterr() == ("", "")
    finally:
        monkeypatch.undo()
        logger.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.mark.parametrize("asked", [{"convert_to_tensor": True}, {"convert_to_numpy": False}])
def test_without_torch(asked: dict[str, bool], model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    model.encode("a")
    with pytest.raises(ImportError, match=rf"^SentenceTransformer.encode {next(iter(asked))}: torch is not installed"):
        model.encode("a", **asked)


def test_tensors(model: SentenceTransformer) -> None:
    torch = pytest.importorskip("torch")
    expected = model.encode(TEXTS)
    found = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(found, torch.Tensor)
    assert_same_bits(found.numpy(), expected)
    assert model.encode("a", convert_to_tensor=True).shape == (24,)
    assert model.encode([], convert_to_tensor=True).shape == (0,)
    listed = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(listed, list)
    assert all(isinstance(row, torch.Tensor) for row in listed)
    assert isinstance(model.encode("a", convert_to_numpy=False), torch.Tensor)
    assert model.encode([], convert_to_numpy=False) == []
    assert model.encode(TEXTS, precision="ubinary", convert_to_tensor=True).dtype == torch.uint8
    assert isinstance(model.encode("a", output_value="token_embeddings", convert_to_tensor=True), torch.Tensor)
    scores = model.similarity(found, found)
    assert isinstance(scores, torch.Tensor)
    assert_same_bits(scores.numpy(), model.similarity(expected, expected))
    assert isinstance(model.similarity_pairwise(listed, expected), torch.Tensor)
    assert SentenceTransformer.to(model, torch.device("cpu")) is model
    assert torch.zeros(1, device=model.device).device.type == "cpu"
