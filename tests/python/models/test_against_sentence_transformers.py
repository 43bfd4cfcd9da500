"""The same directories in sentence-transformers 6.2: the same lengths, tokens and embeddings. Skipped without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6.2")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *map("##{}".format, "abcdefghij"), "the", "dog"]
TEXTS = ["", "a", "the dog", "THE Dog", "abc fade jab", "the " * 50, "bad unknown [MASK] cab", "dog. dog! dog?"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights, as transformers saves it."""
    directory = tmp_path_factory.mktemp("transformer")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).eval().save_pretrained(directory)
    vocab = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab, model_max_length=20).save_pretrained(directory)
    return directory


def _saved(directory: Path, transformer: Path, *behind: Any, **arguments: Any) -> Any:
    """The model of sentence-transformers, which is saved to `directory`."""
    all_modules = [modules.Transformer(str(transformer)), *behind]
    model = sentence_transformers.SentenceTransformer(modules=all_modules, device="cpu", **arguments)
    model.save(str(directory))
    return sentence_transformers.SentenceTransformer(str(directory), device="cpu")


def _assert_same(model: SentenceEncoder, oracle: Any, texts: list[str] = TEXTS, **arguments: Any) -> None:
    expected = oracle.encode(texts, **arguments)
    actual = model.encode(texts, **arguments)
    assert actual.shape == expected.shape
    bound = EMBEDDING_BOUND * np.maximum(np.abs(expected), 1)
    assert_close(actual, expected, bound, label=str(arguments))
    for text, embedding in zip(texts, actual, strict=True):
        assert_same_bits(model.encode(text, **arguments), embedding, label=text)


def _assert_same_tokens(model: SentenceEncoder, oracle: Any, texts: list[str] = TEXTS) -> None:
    assert model.max_length == oracle.max_seq_length
    for text in texts:
        expected = oracle.preprocess([text])["input_ids"][0].tolist()
        assert model._tokenizer.encode_words(text)[0] == expected, text


@pytest.mark.parametrize("modes", [*MODES, ("mean", "cls"), ("cls", "mean"), tuple(MODES)], ids=str)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_poolings(modes: Any, include_prompt: bool, transformer: Path, tmp_path: Path) -> None:
    pooling = modules.Pooling(24, modes, include_prompt=include_prompt)
    oracle = _saved(tmp_path, transformer, pooling, prompts={"query": "the dog: "})
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.max_length == 20
    _assert_same_tokens(model, oracle)
    _assert_same(model, oracle)
    _assert_same(model, oracle, prompt_name="query")
    _assert_same(model, oracle, prompt="a " * 40)
    _assert_same(model, oracle, truncate_dim=5)


ACTIVATIONS = [
    "ELU", "GELU", "Hardtanh", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softplus",
    "Softsign", "Tanh",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "bias"), [(kind, i % 2 == 0) for i, kind in enumerate(ACTIVATIONS)], ids=str)
def test_dense_and_normalize(kind: str, bias: bool, transformer: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    behind = [
        modules.Pooling(24, ("mean", "max")),
        modules.Dense(48, 30, bias=bias, activation_function=getattr(torch.nn, kind)()),
        modules.Normalize(),
        modules.Dense(30, 10),
        modules.Normalize(),
    ]
    oracle = _saved(tmp_path, transformer, *behind)
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.embed_dim == oracle.get_embedding_dimension() == 10
    _assert_same(model, oracle)
    _assert_same(model, oracle, truncate_dim=4)


def test_prompts_and_features_of_the_file(transformer: Path, tmp_path: Path) -> None:
    arguments = {"prompts": {"query": "the ", "passage": "a dog "}, "default_prompt_name": "passage"}
    oracle = _saved(
        tmp_path,
        transformer,
        modules.Pooling(24, "mean"),
        modules.Normalize(),
        truncate_dim=7,
        similarity_fn_name="dot",
        **arguments,
    )
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert (model.embed_dim, model.similarity_fn_name) == (7, "dot")
    for changes in ({}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"prompt": ""}, {"truncate_dim": 9}):
        _assert_same(model, oracle, **changes)
    scaled = oracle.encode(TEXTS, normalize_embeddings=True)
    assert_close(model.encode(TEXTS, normalize=True), scaled, np.full(scaled.shape, EMBEDDING_BOUND), label="scaled")


def test_without_modules(transformer: Path) -> None:
    oracle = sentence_transformers.SentenceTransformer(str(transformer), device="cpu")
    model = SentenceEncoder.from_pretrained(transformer)
    _assert_same_tokens(model, oracle)
    _assert_same(model, oracle)


@pytest.mark.parametrize("file_name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
@pytest.mark.parametrize("lower_case", [True, False])
def test_old_layout(file_name: str, lower_case: bool, transformer: Path, tmp_path: Path) -> None:
    # A tokenizer without lower case, in a folder of its own, as versions before 2 had it.
    shutil.copytree(transformer, tmp_path / "0_Transformer")
    vocab = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab, do_lower_case=False).save_pretrained(tmp_path / "0_Transformer")
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling", "Normalize", transformer="0_Transformer"),
        "1_Pooling/config.json": {
            "word_embedding_dimension": 24,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_lasttoken": True,
        },
        f"0_Transformer/{file_name}": {"max_seq_length": 9, "do_lower_case": lower_case},
    }
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    oracle = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    model = SentenceEncoder.from_pretrained(tmp_path)
    texts = [*TEXTS, "ΣΊΣΥΦΟΣ İstanbul A [SEP] B [MASK]"]
    _assert_same_tokens(model, oracle, texts)
    _assert_same(model, oracle, texts)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [False, True])
def test_weights(dtype: str, shards: bool, transformer: Path, tmp_path: Path) -> None:
    shutil.copytree(transformer, tmp_path, dirs_exist_ok=True)
    whole = transformers.BertModel.from_pretrained(transformer).to(getattr(torch, dtype))
    (tmp_path / "model.safetensors").unlink()
    whole.save_pretrained(tmp_path, max_shard_size="8KB" if shards else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == shards
    kwargs = {"dtype": torch.float32}
    oracle = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu", model_kwargs=kwargs)
    _assert_same(SentenceEncoder.from_pretrained(tmp_path), oracle)


def test_a_pretrained_model_in_both_layouts(model_directory: Path, tmp_path: Path) -> None:
    oracle = sentence_transformers.SentenceTransformer(str(model_directory), device="cpu")
    oracle.save(str(tmp_path))
    assert "pooling_mode" in json.loads((tmp_path / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    old, new = (SentenceEncoder.from_pretrained(directory) for directory in (model_directory, tmp_path))
    texts = [*TEXTS, "word " * 300, "Straße, naïve façade — 東京 😀", "x" * 5000]
    for model in (old, new):
        assert model.max_length == 256
        _assert_same_tokens(model, oracle, texts)
        _assert_same(model, oracle, texts)
    assert_same_bits(new.encode(texts), old.encode(texts))
