"""ViT. Other encoders of images are described by their differences from it."""

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import IMAGES, UNGATED_WITH_QUICK, Family, Keys
from ..architecture.tensor_names import BlockNames, StackNames
from ..front_ends.patches import PatchesNames

NAMES = StackNames(
    front_end=PatchesNames(),
    blocks=BlockNames(
        layer="encoder.layer.{}.",
        query="attention.attention.query",
        key="attention.attention.key",
        value="attention.attention.value",
        out="attention.output.dense",
        up="intermediate.dense",
        down="output.dense",
        norm1="layernorm_before",
        norm2="layernorm_after",
    ),
    final_norm="layernorm",
)

FAMILY = Family(
    model_types=("vit",),
    roles=frozenset({IMAGES}),
    prefix="vit.",
    stacks=(NAMES,),
    keys=Keys(
        max_positions="",
        head_dim="head_dim",
        eps="layer_norm_eps",
        image_size="image_size",
        patch_size="patch_size",
        channels="num_channels",
    ),
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
    },
    activations=UNGATED_WITH_QUICK,
    biases={"": FEED_FORWARD | {"out"}, "qkv_bias": ATTENTION - {"out"}},
)
