"""Encoders of images with random weights, as transformers saves them, with their preprocessing and tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8,
}  # fmt: skip
VISION = SIZES | {"intermediate_size": 40}
WORDS = ["!", *"abcdefg", *map("{}</w>".format, "abcdefg"), "ab</w>", "<|startoftext|>", "<|endoftext|>"]
PIECES = ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁b", *"abcdefg"]
TEXT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40,
    "max_position_embeddings": 12,
}  # fmt: skip
TEXTS = ["a", "", "ab b A", "g f e d c b a g f e d c b a", "c d", "ab"]

# The class in transformers without a head, the sizes, and the class of preprocessing.
MODELS = {
    "vit": ("ViT", VISION, "ViT"),
    "deit": ("DeiT", VISION, "DeiT"),
    "dinov2": ("Dinov2", SIZES, "Bit"),
    "dinov2_with_registers": ("Dinov2WithRegisters", SIZES, "Bit"),
    "clip": ("CLIP", VISION, "CLIP"),
    "clip_vision_model": ("CLIPVision", VISION, "CLIP"),
    "siglip": ("Siglip", VISION, "Siglip"),
    "siglip_vision_model": ("SiglipVision", VISION, "Siglip"),
}
FAMILIES = list(MODELS)


def tokenizer_of(model_type: str, **arguments: Any) -> Any:
    """A tokenizer of few words, of the kind that the family has."""
    import tokenizers
    import transformers

    if model_type == "clip":
        words = {word: i for i, word in enumerate(WORDS)}
        return transformers.CLIPTokenizer(vocab=words, merges=[("a", "b</w>")], **arguments)
    pieces = [(word, 0.0 if i < 3 else -2.0 - i / 10) for i, word in enumerate(PIECES)]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names: dict[str, Any] = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "padding_side": "right"}
    names["model_input_names"] = ["input_ids"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **(names | arguments))


def config_of(model_type: str, changes: dict[str, Any]) -> Any:
    """Its configuration in transformers. `changes` of the parts of a pair are in text_config and vision_config."""
    import transformers

    name, sizes, _ = MODELS[model_type]
    kind = getattr(transformers, f"{name}Config")
    if model_type not in ("clip", "siglip"):
        return kind(**(sizes | {"initializer_range": 0.2} | changes))
    ends = {"bos_token_id": 16, "eos_token_id": 17, "pad_token_id": 17, "vocab_size": len(WORDS)}
    if model_type == "siglip":
        ends = {"eos_token_id": 1, "vocab_size": len(PIECES), "projection_size": VISION["hidden_size"]}
    text, vision = changes.pop("text_config", {}), changes.pop("vision_config", {})
    own = {"projection_dim": 10} if model_type == "clip" else {}
    return kind(text_config=TEXT | ends | text, vision_config=VISION | vision, **(own | changes))


def save(
    directory: Path, model_type: str, head: str = "Model", dtype: str = "float32", tokenizer: Any = None, **changes: Any
) -> Path:
    """A model with a head of transformers, or "Model" for none. `changes` are entries of config.json."""
    import torch
    import transformers

    name, _, processor = MODELS[model_type]
    config = config_of(model_type, dict(changes))
    torch.manual_seed(0)
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():  # which are zeros and ones in a new model, and so without effect
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1 or any(part in key for part in ("token", "embedding", "probe")):
                parameter += torch.randn_like(parameter) / 4
            elif parameter.dim() == 2:
                parameter += torch.randn_like(parameter) / 8
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    size = {"height": 32, "width": 32}
    shown = {"size": {"shortest_edge": 36}, "crop_size": size} if processor in ("CLIP", "Bit") else {"size": size}
    shown |= {"crop_size": size} if processor == "DeiT" else {}
    getattr(transformers, f"{processor}ImageProcessorPil")(**shown).save_pretrained(directory)
    if model_type in ("clip", "siglip"):
        library = tokenizer_of(model_type, model_max_length=10) if tokenizer is None else tokenizer
        library.save_pretrained(directory)
    return directory


def pixels_of(height: int, width: int, count: int = 3) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Images [count, 3, height, width] as preprocessing leaves them."""
    return np.random.default_rng([height, width]).standard_normal((count, 3, height, width)).astype(np.float32)


def pictures(count: int = 5) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Images of different sizes, [height, width, 3]."""
    rng = np.random.default_rng(count)
    sizes = [(32, 32), (40, 33), (20, 61), (64, 48), (36, 36)]
    return [rng.integers(0, 256, (*sizes[i % len(sizes)], 3), dtype=np.uint8) for i in range(count)]
