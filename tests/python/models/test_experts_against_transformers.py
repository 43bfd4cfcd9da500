"""Language models with experts, as transformers saves them: the logits of its float64, and its greedy tokens.

Skipped without transformers and torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_language_model
from decoder_logits import logits, opened
from tolerance import assert_close, assert_same_bits

from mha_native.models import CausalLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
safetensors = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY, WIDTH = tiny_language_model.VOCABULARY, 32
# transformers rounds angles to float32: at 32 positions by some 2^-19.
BOUNDS = {"float32": 1e-5, "bfloat16": 6e-2, "int8": 0.1}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
QWEN = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
QWEN2 = QWEN | {"shared_expert_intermediate_size": 20}
MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 8, "sliding_window": 6}
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", MIXTRAL),
    "mixtral with a window": ("Mixtral", MIXTRAL | {"sliding_window": 5, "hidden_act": "gelu"}),
    "qwen2_moe": ("Qwen2Moe", QWEN2 | {"decoder_sparse_step": 2}),
    "qwen2_moe, normalized": ("Qwen2Moe", QWEN2 | {"mlp_only_layers": [1], "norm_topk_prob": True, "qkv_bias": False}),
    "qwen2_moe with a window": ("Qwen2Moe", QWEN2 | WINDOW | {"max_window_layers": 2}),
    "qwen2_moe, in all layers": ("Qwen2Moe", QWEN2),
    "qwen3_moe": ("Qwen3Moe", QWEN | {"norm_topk_prob": True, "head_dim": 8}),
    "qwen3_moe with a window": ("Qwen3Moe", QWEN | WINDOW | {"head_dim": 10, "mlp_only_layers": [0]}),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "olmoe, normalized": ("Olmoe", QWEN | {"norm_topk_prob": True, "attention_bias": True}),
    "gpt_oss": ("GptOss", GPT_OSS),
    "gpt_oss of whole blocks": ("GptOss", GPT_OSS | {"intermediate_size": 64}),
    "gpt_oss, tied": ("GptOss", GPT_OSS | {"tie_word_embeddings": True, "attention_bias": False}),
}
FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"]

_RNG = np.random.default_rng(7)
SEQUENCES = [_RNG.integers(0, VOCABULARY, length).tolist() for length in (6, 1, 32, 15)]


def save(directory: Path, name: str) -> Any:
    """A model with random weights in `directory`, as transformers reads it in float64."""
    prefix, changes = CASES[name]
    config = getattr(transformers, f"{prefix}Config")(
        **(SIZES | changes), bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # of such a size that no part is without effect
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise / np.sqrt(WIDTH))
    model.save_pretrained(directory)
    tiny_language_model.tokenizer().save(str(directory / "tokenizer.json"))
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, **options).eval()


def _assert_logits(directory: Path, oracle: Any, weight_dtype: str | None = None) -> None:
    found = logits(opened(directory, weight_dtype=weight_dtype), SEQUENCES)
    for tokens, actual in zip(SEQUENCES, found, strict=True):
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([tokens])).logits[0].numpy()
        size = max(float(np.abs(expected).max()), 1.0)
        assert_close(actual, expected, np.full(expected.shape, BOUNDS["float32"] * size), label=f"{len(tokens)} tokens")


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    _assert_logits(tmp_path, save(tmp_path, name))


def test_blocks_of_mxfp4(tmp_path: Path) -> None:
    name = "gpt_oss of whole blocks"
    save(tmp_path, name)
    path, rng = tmp_path / "model.safetensors", np.random.default_rng(3)
    tensors = safetensors.load_file(path)
    for stem in [stem for stem in tensors if stem.endswith(("gate_up_proj", "down_proj"))]:
        count, columns, rows = tensors.pop(stem).shape
        tensors[f"{stem}_blocks"] = rng.integers(0, 256, (count, rows, columns // 32, 16), np.uint8)
        tensors[f"{stem}_scales"] = rng.integers(122, 127, (count, rows, columns // 32), np.uint8)
    safetensors.save_file(tensors, path, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    numbers = transformers.Mxfp4Config(dequantize=True)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=numbers, **options).eval()
    _assert_logits(tmp_path, oracle.to(torch.float64), "float32")
    in_blocks = opened(tmp_path)
    numbers_of_experts = 2 * sum(tensor.size for stem, tensor in tensors.items() if stem.endswith("_blocks"))
    assert in_blocks.weight_bytes()["mxfp4"] == numbers_of_experts // 32 * 17
    for actual, exact in zip(
        logits(in_blocks.quantize("float32"), SEQUENCES),
        logits(opened(tmp_path, weight_dtype="float32"), SEQUENCES),
        strict=True,
    ):
        assert_same_bits(actual, exact)
    scales = next(stem for stem in tensors if stem.endswith("_scales"))
    tensors[scales][0, 0, 0] = 255
    safetensors.save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ValueError, match="_scales must be such that numbers are finite"):
        opened(tmp_path)
    safetensors.save_file(tensors | {"model.norm.weight": np.ones(WIDTH, np.uint8)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"norm\.weight U8 instead of F32"):
        opened(tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_formats(name: str, tmp_path: Path) -> None:
    oracle = save(tmp_path, name)
    prompts = SEQUENCES[:2] + SEQUENCES[3:]
    model = CausalLM.from_pretrained(str(tmp_path))
    together = model.generate_tokens(prompts, max_new_tokens=12)
    for prompt, found in zip(prompts, together, strict=True):
        tokens = torch.tensor([prompt])
        expected = oracle.generate(tokens, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(tokens))
        assert found.tolist() == expected[0, len(prompt) :].tolist()
    plain = logits(opened(tmp_path), SEQUENCES)
    for weight_dtype in ("float32", "bfloat16", "int8"):
        model = CausalLM.from_pretrained(str(tmp_path), weight_dtype=weight_dtype)
        tokens = model.generate_tokens(prompts, max_new_tokens=12, num_threads=1)
        for prompt, alone in zip(prompts, tokens, strict=True):  # also by other threads
            (found,) = model.generate_tokens([prompt], max_new_tokens=12, num_threads=2)
            assert found.tolist() == alone.tolist()
        stored = opened(tmp_path, weight_dtype=weight_dtype)
        found = logits(stored, SEQUENCES)
        for sequence, actual, expected in zip(SEQUENCES, found, plain, strict=True):
            assert_same_bits(logits(stored, [sequence])[0], actual)
            share = np.mean(np.abs(actual - expected)) / max(float(np.abs(expected).max()), 1.0)
            assert share <= BOUNDS[weight_dtype], weight_dtype  # another expert may be chosen here and there


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mixtral", {"num_experts_per_tok": 6}),
        ("mixtral", {"num_local_experts": 0}),
        ("qwen2_moe", {"mlp_only_layers": "all"}),
        ("qwen3_moe", {"decoder_sparse_step": 0}),
        ("qwen3_moe", {"moe_intermediate_size": 25}),
        ("olmoe", {"clip_qkv": 8.0}),
        ("gpt_oss", {"swiglu_limit": 6.0}),
        ("gpt_oss", {"num_local_experts": 7}),
        ("gpt_oss", {"quantization_config": {"quant_method": "bitsandbytes"}}),
    ],
    ids=str,
)
def test_damaged_configs(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, name)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"CausalLM\.from_pretrained: ") as error:
        CausalLM.from_pretrained(str(tmp_path))
    assert len(str(error.value).splitlines()) == 1


def test_families_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "mixtral")
    path = tmp_path / "config.json"
    for model_type in ("deepseek_v2", "deepseek_v3"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": model_type}))
        with pytest.raises(ValueError, match=model_type):
            CausalLM.from_pretrained(str(tmp_path))
