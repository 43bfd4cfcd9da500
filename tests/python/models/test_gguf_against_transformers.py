"""GGUF files as transformers reads them: the same configs, tensors and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import odd_texts
import pytest
from decoder_logits import logits, opened
from test_decoders_against_transformers import BOUND
from test_gguf_tokenizers import SENTENCE_PIECES, SPACE
from tolerance import assert_close

from mha_native.models.files.gguf.source import GGUFSource

pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SEQUENCES = [np.random.default_rng(length).integers(0, gguf_files.V, length).tolist() for length in (1, 40)]
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2"]

# What transformers does not take from the file, but leaves as it is in one of the models of the architecture; for some
# models it has no such entry.
LEFT_AS_IT_IS = {
    "qwen2": {"head_dim"},
    "qwen3": {"head_dim"},
    "gemma2": {"query_pre_attn_scalar"},
    "gemma3": {"query_pre_attn_scalar"},
    "gpt2": {"n_positions", "n_inner"},
}


@pytest.mark.parametrize(
    ("architecture", "tied"), [*((name, True) for name in ARCHITECTURES), ("llama", False), ("gpt2", False)]
)
def test_config_and_tensors(architecture: str, tied: bool, tmp_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    metadata, tensors = gguf_files.model(architecture)
    if not tied:
        tensors["output.weight"] = tensors["token_embd.weight"][::-1].copy()
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.contents(metadata, tensors))
    ours = GGUFSource(path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file=path.name)
    differing = {key for key, value in ours.config.items() if getattr(config, key, None) != value}
    assert differing <= LEFT_AS_IT_IS.get(architecture, set())

    model = transformers.AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    prefix = f"{model.base_model_prefix}."
    theirs = {name.removeprefix(prefix): tensor.numpy() for name, tensor in loaded.items()}
    assert len(theirs) == len(tensors)
    with ours.tensors([(name, tensor.shape) for name, tensor in theirs.items()], prefix) as opened:
        for name, tensor in theirs.items():
            assert np.array_equal(opened[name], tensor), name


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits(architecture: str, kind: str, tmp_path: Path) -> None:
    """Those of transformers in float64, of the config that the file asks for."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    metadata, tensors = gguf_files.model(architecture)
    tensors = {name: (tensor, kind if tensor.ndim == 2 else "F32") for name, tensor in tensors.items()}
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.contents(metadata, tensors))
    source = GGUFSource(path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file=path.name, attn_implementation="eager")
    for key in LEFT_AS_IT_IS.get(architecture, ()):
        setattr(config, key, source.config[key])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(loaded, strict=False)
    model.double()
    for tokens, actual in zip(SEQUENCES, logits(opened(source, weight_dtype="float32"), SEQUENCES), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0].numpy()
        assert_close(actual, expected, np.full(expected.shape, BOUND * np.abs(expected).max()), label=f"{len(tokens)}")


def both_tokenizers(path: Path, architecture: str, changes: dict[str, Any]) -> tuple[Any, Any]:
    metadata, tensors = gguf_files.model(architecture)
    # transformers adds tokens of its own where the file names none in these roles.
    metadata |= {f"tokenizer.ggml.{role}_token_id": 0 for role in ("unknown", "padding")} | changes
    (path / "model.gguf").write_bytes(
        gguf_files.contents({name: value for name, value in metadata.items() if value is not None}, tensors)
    )
    theirs = transformers.AutoTokenizer.from_pretrained(path, gguf_file="model.gguf")
    return GGUFSource(path / "model.gguf").tokenizer(), theirs


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("gpt2", {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": False}),
        ("llama", {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": True}),
        ("llama", {"tokenizer.ggml.pre": "tekken", "tokenizer.ggml.add_bos_token": False}),
        ("gemma3", SENTENCE_PIECES | {"tokenizer.ggml.add_space_prefix": False}),
    ],
)
@pytest.mark.parametrize("count", [300, pytest.param(20000, marks=pytest.mark.exhaustive)])
def test_tokens(architecture: str, changes: dict[str, Any], count: int, tmp_path: Path) -> None:
    ours, theirs = both_tokenizers(tmp_path, architecture, changes)
    for text in odd_texts.texts(count):
        assert ours.encode(text).ids == theirs(text).input_ids, text


@pytest.mark.parametrize("count", [300, pytest.param(20000, marks=pytest.mark.exhaustive)])
def test_tokens_of_sentence_pieces(count: int, tmp_path: Path) -> None:
    """transformers puts no space before a text that begins with one, nor after special tokens."""
    ours, theirs = both_tokenizers(tmp_path, "llama", SENTENCE_PIECES)
    for text in odd_texts.texts(count):
        if not text.startswith((" ", SPACE)) and not any(token in text for token in ("<unk>", "<s>", "</s>")):
            assert ours.encode(text).ids == theirs(text).input_ids, text


@pytest.mark.parametrize("count", [300, pytest.param(20000, marks=pytest.mark.exhaustive)])
def test_tokens_of_qwen2(count: int, tmp_path: Path) -> None:
    """The tokenizer of the model composes characters, which transformers leaves out for a GGUF file."""
    import unicodedata

    changes = {"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": False}
    ours, theirs = both_tokenizers(tmp_path, "qwen2", changes)
    for text in odd_texts.texts(count):
        composed = unicodedata.normalize("NFC", text)
        if len(ours.normalizer.normalize_str(text)) == len(composed):  # versions of Unicode may differ
            assert ours.encode(text).ids == theirs(ours.normalizer.normalize_str(text)).input_ids, text
