"""Tiny models of images, and of images and texts, with random weights, as transformers and sentence-transformers save
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZE = 32  # height and width of an image
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
VISION = TOWER | {"image_size": SIZE, "patch_size": 8}

_PROCESSORS = {"vit": "ViT", "deit": "DeiT", "dinov2": "Bit", "clip": "CLIP", "siglip": "Siglip"}


def clip_tokenizer() -> Any:
    """A tokenizer of few words, of CLIP's kind."""
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'"
    vocab = [*letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>", "do", "dog</w>"]
    vocab += ["<|startoftext|>", "<|endoftext|>"]
    merges = [("t", "h"), ("th", "e</w>"), ("d", "o"), ("do", "g</w>")]
    numbers = {word: i for i, word in enumerate(vocab)}
    return transformers.CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=16)


def image_processor(model_type: str, size: int = SIZE) -> Any:
    """The processor of a family for images of `size`."""
    import importlib

    kind = _PROCESSORS[model_type]
    module = importlib.import_module(f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}")
    sizes: dict[str, Any] = {"size": {"height": size, "width": size}}
    if kind in ("CLIP", "Bit"):
        sizes = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    elif kind == "DeiT":
        sizes = {"size": {"height": size + 4, "width": size + 4}, "crop_size": {"height": size, "width": size}}
    return getattr(module, f"{kind}ImageProcessorPil")(**sizes)


def _randomized(model: Any) -> Any:
    """Change numbers that are zeros and ones in a new model, and so without effect."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter += torch.randn_like(parameter) / 4
    return model.eval()


def save_clip(directory: Path, projection: int = 20) -> Path:
    """A CLIP model with its processor."""
    import torch
    import transformers

    tokenizer = clip_tokenizer()
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 1}
    text = TOWER | tokens | {"vocab_size": len(tokenizer), "max_position_embeddings": 16}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=projection)
    _randomized(transformers.CLIPModel(config)).save_pretrained(directory)
    transformers.CLIPProcessor(image_processor("clip"), tokenizer).save_pretrained(directory)
    return directory


def save_vit(directory: Path, labels: int = 0, model_type: str = "vit") -> Path:
    """A ViT; with `labels`, a classifier of so many labels."""
    import torch
    import transformers

    torch.manual_seed(1)
    kind = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2"}[model_type]
    names = {i: f"kind {i}" for i in range(labels)}
    extra = {"id2label": names, "label2id": {name: i for i, name in names.items()}} if labels else {}
    config = getattr(transformers, f"{kind}Config")(**(VISION | extra))
    name = f"{kind}{'ForImageClassification' if labels else 'Model'}"
    _randomized(getattr(transformers, name)(config)).save_pretrained(directory)
    image_processor(model_type).save_pretrained(directory)
    return directory
