"""BERT. Other text encoders are described by their differences from it."""

from ..architecture.family import EMBEDDING, Family, Keys
from ..architecture.tensor_names import BlockNames, StackNames
from ..front_ends.tokens import TokensNames

NAMES = StackNames(
    front_end=TokensNames(
        words=("embeddings.word_embeddings.weight",),
        positions="embeddings.position_embeddings.weight",
        token_types="embeddings.token_type_embeddings.weight",
        norm="embeddings.LayerNorm",
    ),
    blocks=BlockNames(
        layer="encoder.layer.{}.",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        out="attention.output.dense",
        norm1="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        norm2="output.LayerNorm",
    ),
)

FAMILY = Family(
    model_types=("bert",),
    roles=frozenset({EMBEDDING}),
    prefix="bert.",
    stacks=(NAMES,),
    keys=Keys(eps="layer_norm_eps", token_types="type_vocab_size"),
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    expected={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    norm_first=False,
)
