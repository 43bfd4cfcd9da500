"""DINOv2: ViT with factors of the outputs of sublayers, and in its largest model gated feed-forwards."""

from ..architecture.config import ModelConfig
from ..architecture.family import Family, described, entries_of
from ..architecture.tensor_names import BlockNames
from ..files.entries import Entries
from .vit import FAMILY as VIT
from .vit import NAMES


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    entries = entries_of(family, given)
    inner = entries.size("hidden_size") * entries.size("mlp_ratio")
    is_gated = entries.flag("use_swiglu_ffn")
    if is_gated:  # two thirds of the features, rounded up to a multiple of 8
        inner = (int(inner * 2 / 3) + 7) // 8 * 8
    config = described(family, given._replace(values={**given.values, "intermediate_size": inner}), role, max_positions)
    if not is_gated:
        return config
    (stack,) = config.stacks
    blocks = tuple(block._replace(gated=True, activation="silu") for block in stack.blocks)
    return config._replace(stacks=(stack._replace(blocks=blocks),))


FAMILY = VIT._replace(
    model_types=("dinov2",),
    prefix="dinov2.",
    stacks=(
        NAMES._replace(
            blocks=BlockNames(
                layer="encoder.layer.{}.",
                query="attention.attention.query",
                key="attention.attention.key",
                value="attention.attention.value",
                out="attention.output.dense",
                out_scale="layer_scale1.lambda1",
                gate="mlp.weights_in",
                up="mlp.weights_in",
                down="mlp.weights_out",
                ungated_up="mlp.fc1",
                ungated_down="mlp.fc2",
                down_scale="layer_scale2.lambda1",
                norm1="norm1",
                norm2="norm2",
            )
        ),
    ),
    defaults={
        **VIT.defaults, "layer_norm_eps": 1e-6, "patch_size": 14, "mlp_ratio": 4, "use_swiglu_ffn": False,
    },
    has_scales=True,
    describe=_describe,
)  # fmt: skip
