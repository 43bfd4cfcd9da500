"""The families of models. A family is a module in `families`, and its name here."""

from importlib import import_module

from ..files.entries import Entries
from .config import ModelConfig
from .family import EMBEDDING, GENERATION, IMAGES, SPEECH_TO_TEXT, TEXT_TO_TEXT, Family, described

_MODULES = """
    bert distilbert mpnet roberta modernbert nomic_bert gte albert electra deberta_v2
    gemma2 gemma3 gpt2 llama mistral qwen2 qwen3
    cohere cohere2 ernie4_5 exaone4 gemma3_multimodal glm glm4 gpt_neox granite
    olmo2 olmo3 phi3 smollm3 stablelm starcoder2
    gpt_oss mixtral olmoe qwen2_moe qwen3_moe
    bart marian mbart pegasus t5 m2m_100 mt5 umt5
    whisper
    vit deit dinov2 dinov2_with_registers clip clip_text siglip siglip_text
"""

FAMILIES: tuple[Family, ...] = tuple(
    import_module(f"..families.{name}", __package__).FAMILY for name in _MODULES.split()
)


def families_of(role: str) -> dict[str, Family]:
    """Return the families with models in a role, by their names in config.json."""
    return {name: family for family in FAMILIES if role in family.roles for name in family.model_types}


# Unsupported models for which there is something better to say than a list of families, by their role and name.
_NAFLEX = "is a SigLIP 2 for images of any shape, NaFlex, which is unsupported; those for one size have model_type"
_UNSUPPORTED = {
    (EMBEDDING, "new"): "is a GTE with its own code, which is unsupported; convert it to the GTE of transformers, with "
    "model_type 'gte'",
    (IMAGES, "siglip2"): f"{_NAFLEX} 'siglip'",
    (IMAGES, "siglip2_vision_model"): f"{_NAFLEX} 'siglip_vision_model'",
}


# The class that opens the models of a role; for a family with several roles, the first one here.
_CLASSES = {
    GENERATION: "CausalLM",
    TEXT_TO_TEXT: "Seq2SeqLM",
    SPEECH_TO_TEXT: "WhisperModel",
    EMBEDDING: "SentenceEncoder",
    IMAGES: "ImageEncoder",
}


def family_of(entries: Entries, role: str) -> Family:
    """Return the family that config.json names. ValueError, with a list of the families, if it is unknown. If models of
    another role have this family, the message names the class that opens them."""
    name = entries.values.get("model_type")
    if isinstance(name, str) and (role, name) in _UNSUPPORTED:
        raise ValueError(f"{entries.path}: model_type {name!r} {_UNSUPPORTED[role, name]}")
    families = families_of(role)
    try:
        return families[entries.choice("model_type", *families)]
    except ValueError as error:
        others = (opener for other, opener in _CLASSES.items() if name in list(families_of(other)))
        if opener := next(others, None):
            raise ValueError(f"{error}, which {opener} opens") from None
        raise


def describe(family: Family, entries: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    """Describe a model of a family from the entries of config.json: see `described`."""
    return (family.describe or described)(family, entries, role, max_positions)
