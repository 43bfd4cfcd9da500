"""Decoders whose last layer gives the vectors of tokens, and encoders of T5, as sentence-transformers saves them: the
same tokens and embeddings here.

Skipped without that library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_families
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.sentence_transformers import SentenceTransformer

theirs = pytest.importorskip("sentence_transformers", minversion="6.2")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = [
    "", " ", "a", "the dog", "THE Dog", "abc fade jab", "  two  blanks\tand\na line ", "the " * 50, "dog. dog! dog?",
    "Straße, naïve façade — 東京 😀", "x" * 300, "1234 it's",
]  # fmt: skip

_SIZES = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "max_position_embeddings": 32, "initializer_range": 0.3,
}  # fmt: skip
_CLASSES = {"qwen3": "Qwen3", "gemma3_text": "Gemma3Text", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _tokenizer(model_type: str) -> Any:
    """Byte-level BPE, whose last token is that of the end, as of Qwen3-Embedding; or that of Gemma."""
    import tokenizers

    if model_type == "gemma3_text":
        special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
        pieces = [*special, *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdefghijt", "th", "the", "▁the"]
        merges = [("t", "h"), ("th", "e"), ("▁", "the")]
        library = transformers.GemmaTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
        begin, end, processor = "<bos>", "<eos>", tokenizers.processors.TemplateProcessing
        tokens = [(begin, 2), (end, 1)]
        library._tokenizer.post_processor = processor(single=f"{begin} $A {end}", pair=None, special_tokens=tokens)
    else:
        vocab, merges = saved_families._byte_level()
        words = list(vocab)[len(saved_families.SPECIAL) :]
        library = transformers.Qwen2Tokenizer(vocab={word: i for i, word in enumerate(words)}, merges=merges)
        end = library.eos_token
        template = tokenizers.processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A $B:1 {end}:1", special_tokens=[(end, library.eos_token_id)]
        )
        byte_level = tokenizers.processors.ByteLevel(trim_offsets=False)
        library._tokenizer.post_processor = tokenizers.processors.Sequence([byte_level, template])
    library.model_max_length = 24
    return library


def _save(directory: Path, model_type: str, dtype: str = "float32", pooling: str = "lasttoken", **changes: Any) -> Path:
    """A model as sentence-transformers saves it, that of Gemma with its two Dense modules."""
    library = _tokenizer(model_type)
    sizes = {name: value for name, value in _SIZES.items() if name != "head_dim" or model_type != "qwen2"}
    own = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "vocab_size": len(library)}
    if model_type == "gemma3_text":
        own |= {
            "use_bidirectional_attention": True, "sliding_window": 8, "query_pre_attn_scalar": 32,
            "layer_types": [_SLIDING, _FULL, _SLIDING],
        }  # fmt: skip
    name = _CLASSES[model_type]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(sizes | own | changes))
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) / 4
    model.to(getattr(torch, dtype)).save_pretrained(directory / "transformer")
    library.save_pretrained(directory / "transformer")
    behind = [modules.Pooling(24, pooling)]
    if model_type == "gemma3_text":
        identity = torch.nn.Identity()
        behind += [modules.Dense(24, 40, False, identity), modules.Dense(40, 24, False, identity)]
    whole = [modules.Transformer(str(directory / "transformer")), *behind, modules.Normalize()]
    prompts = {"query": "the dog: ", "document": "a "}
    theirs.SentenceTransformer(modules=whole, device="cpu", prompts=prompts).save(str(directory / "model"))
    return directory / "model"


def _assert_same(directory: Path, **arguments: Any) -> None:
    oracle = theirs.SentenceTransformer(str(directory), device="cpu", model_kwargs={"dtype": torch.float32})
    model = SentenceEncoder.from_pretrained(directory)
    for text in TEXTS:
        assert model._tokenizer.encode_words(text)[0] == oracle.preprocess([text])["input_ids"][0].tolist(), repr(text)
    oracle.double()
    expected, actual = oracle.encode(TEXTS, **arguments), model.encode(TEXTS, **arguments)
    assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND), label=str(directory))
    for text, embedding in zip(TEXTS, actual, strict=True):
        assert_same_bits(model.encode(text, **arguments), embedding, label=text)
    drop_in = SentenceTransformer(str(directory), device="cpu")
    assert_same_bits(drop_in.encode(TEXTS, **arguments), actual)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", _CLASSES)
def test_each_family_in_each_dtype(model_type: str, dtype: str, tmp_path: Path) -> None:
    _assert_same(_save(tmp_path, model_type, dtype))


_LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 8,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    *[("qwen3", {"rope_parameters": rope}) for rope in (_LINEAR, _LLAMA3)],
    ("qwen3", {"num_key_value_heads": 4, "head_dim": 6}),
    ("qwen3", {"attention_bias": True, "rms_norm_eps": 0.1}),
    ("qwen3", {"hidden_act": "gelu"}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3", {"tie_word_embeddings": True}),
    *[("gemma3_text", {"sliding_window": window}) for window in (2, 6, 40)],
    ("gemma3_text", {"use_bidirectional_attention": False, "sliding_window": 5}),
    ("gemma3_text", {"rope_parameters": {_FULL: _LINEAR, _SLIDING: {"rope_type": "default", "rope_theta": 7.0}}}),
    ("gemma3_text", {"query_pre_attn_scalar": 5, "hidden_activation": "silu"}),
    ("gemma3_text", {"attention_bias": True, "rms_norm_eps": 0.1}),
    ("mistral", {"sliding_window": 5}),
]


@pytest.mark.parametrize(("model_type", "changes"), SWITCHES, ids=str)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _assert_same(_save(tmp_path, model_type, **changes))


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text"])
def test_prompts_and_poolings(model_type: str, tmp_path: Path) -> None:
    directory = _save(tmp_path, model_type, pooling="mean")
    _assert_same(directory, prompt_name="query")
    _assert_same(directory, prompt="the ")


def _save_t5(directory: Path, which: str = "T5EncoderModel", dtype: str = "float32", **changes: Any) -> Path:
    """An encoder of T5, or all of one, with the Dense module of sentence-t5, which has no bias."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁the", -2.0), ("▁dog", -2.5), ("th", -3.1)]
    pieces += [(letter, -5.0 - i / 10) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz.,!?")]
    library = transformers.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=24)
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 5, "vocab_size": len(library)}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    kind = next(name for name in ("UMT5", "MT5", "T5") if which.startswith(name))
    config = getattr(transformers, f"{kind}Config")(**(sizes | buckets | changes))
    torch.manual_seed(0)
    model = getattr(transformers, which)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) / 4
            else:
                is_table = "shared" in name or "bias" in name
                parameter.copy_(torch.randn_like(parameter) / (1 if is_table else parameter.shape[1] ** 0.5))
    model.to(getattr(torch, dtype)).save_pretrained(directory / "transformer")
    library.save_pretrained(directory / "transformer")
    dense = modules.Dense(24, 16, bias=False, activation_function=torch.nn.Identity())
    transformer = modules.Transformer(str(directory / "transformer"))
    whole = [transformer, modules.Pooling(24, "mean"), dense, modules.Normalize()]
    theirs.SentenceTransformer(modules=whole, device="cpu").save(str(directory / "model"))
    return directory / "model"


@pytest.mark.parametrize(("which", "saved_in", "changes"), [
    ("T5EncoderModel", "float32", {}),
    ("T5EncoderModel", "bfloat16", {"feed_forward_proj": "gated-gelu"}),
    ("T5EncoderModel", "float32", {"relative_attention_max_distance": 6, "layer_norm_epsilon": 0.1}),
    ("T5EncoderModel", "float32", {"feed_forward_proj": "gelu", "num_heads": 2, "d_kv": 16}),
    ("T5Model", "float32", {"num_decoder_layers": 1}),
    ("MT5EncoderModel", "float32", {}),
    ("UMT5EncoderModel", "float32", {}),
], ids=str)  # fmt: skip
def test_sentence_t5(which: str, saved_in: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _assert_same(_save_t5(tmp_path, which, saved_in, **changes))
