"""Gemma 3 with images: its text model. The tensors of the image encoder are not read."""

from ...functions.messages import shown
from ..architecture.config import ModelConfig
from ..architecture.family import GENERATION, Family
from ..files.entries import Entries
from .gemma3 import FAMILY as GEMMA3

# Entries of the text model that may be absent, and entries of the whole model that change it.
_SIZES = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
}
_OF_ALL = ("auto_map", "quantization_config", "tie_word_embeddings")


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    text = given.values.get("text_config")
    if not isinstance(text, dict):
        raise ValueError(f"{given.path}: text_config must be an object; got {shown(text)}")
    entries = Entries(f"{given.path}: text_config", _SIZES | text)
    entries.expect({"model_type": "gemma3_text"})
    if given.has("tie_word_embeddings"):
        entries.expect({"tie_word_embeddings": given.flag("tie_word_embeddings")})
    of_all = {name: given.values[name] for name in _OF_ALL if name in given.values}
    assert GEMMA3.describe is not None
    return GEMMA3.describe(GEMMA3, entries._replace(values={**entries.values, **of_all}), role, max_positions)


FAMILY = GEMMA3._replace(
    model_types=("gemma3",), roles=frozenset({GENERATION}), prefix="language_model.model.", describe=_describe
)
