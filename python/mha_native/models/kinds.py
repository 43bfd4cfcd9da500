"""Kinds of pretrained models, by their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .architecture.family import EMBEDDING, GENERATION, IMAGES, SPEECH_TO_TEXT, TEXT_TO_TEXT, TEXTS_OF_IMAGES
from .architecture.registry import families_of
from .files.late_interaction import is_late_interaction
from .heads.classification import TEXTS, TOKENS

EMBEDDINGS, SPARSE, LANGUAGE, ENCODER_DECODER = "embedding", "sparse embedding", "language model", "encoder-decoder"
CLASSIFIER, TOKEN_CLASSIFIER, SPEECH = "classifier", "token classifier", "speech model"
MULTI_VECTOR = "multi-vector embedding"
IMAGE_EMBEDDINGS, IMAGE_TEXT_EMBEDDINGS = "image embedding", "image and text embedding"
IMAGE_CLASSIFIER = "image classifier"

# A part of the name of a class in transformers: of classifiers of images.
_LABELS_OF_IMAGES = "ForImageClassification"

# The kinds by the ends of the names of classes in transformers.
_CLASSIFIERS = {TEXTS: CLASSIFIER, TOKENS: TOKEN_CLASSIFIER}
_OF_CLASSES = {
    "ForCausalLM": LANGUAGE,
    "LMHeadModel": LANGUAGE,
    "ForConditionalGeneration": ENCODER_DECODER,
    "MTModel": ENCODER_DECODER,
}
# Of a class without a kind of its own, such as BertModel.
_OF_ROLES = {EMBEDDING: EMBEDDINGS, GENERATION: LANGUAGE, TEXT_TO_TEXT: ENCODER_DECODER, SPEECH_TO_TEXT: SPEECH}


def kind_of(home: Path, config: Mapping[str, Any]) -> str | None:
    """Return the kind of the model in a folder with the config.json `config`, by its class in transformers or else by
    its family; None if both are unknown."""
    family = str(config.get("model_type"))
    if family in families_of(SPEECH_TO_TEXT):  # its class has the name of an encoder-decoder of texts
        return SPEECH
    if is_late_interaction(home):
        return MULTI_VECTOR
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if family in families_of(IMAGES):
        if _LABELS_OF_IMAGES in name:
            return IMAGE_CLASSIFIER
        return IMAGE_TEXT_EMBEDDINGS if family in families_of(TEXTS_OF_IMAGES) else IMAGE_EMBEDDINGS
    for kinds in (_CLASSIFIERS, {"": EMBEDDINGS} if (home / "modules.json").exists() else _OF_CLASSES):
        for ending, kind in kinds.items():
            if name.endswith(ending):
                return kind
    return next((kind for role, kind in _OF_ROLES.items() if family in families_of(role)), None)
