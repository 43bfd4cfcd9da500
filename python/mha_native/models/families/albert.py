"""ALBERT: BERT whose layers are one, or one for each group, and whose tables of tokens have fewer features."""

from ..architecture.config import ModelConfig
from ..architecture.family import Family, described
from ..architecture.tensor_names import BlockNames
from ..files.entries import Entries
from .bert import FAMILY as BERT
from .bert import NAMES


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    config = described(family, given, role, max_positions)
    entries, (stack,) = given._replace(values={**family.defaults, **given.values}), config.stacks
    depth, groups = len(stack.blocks), entries.size("num_hidden_groups")
    if groups > depth:
        raise ValueError(
            f"{entries.path}: num_hidden_groups must be at most num_hidden_layers; got {groups} and {depth}"
        )
    numbers = tuple(int(i / (depth / groups)) for i in range(depth))
    front_end = stack.front_end._replace(table_dim=entries.size("embedding_size"))
    return config._replace(stacks=(stack._replace(front_end=front_end, numbers=numbers),))


FAMILY = BERT._replace(
    model_types=("albert",),
    prefix="albert.",
    keys=BERT.keys._replace(table_dim="embedding_size"),
    stacks=(
        NAMES._replace(
            front_end=NAMES.front_end._replace(projection="encoder.embedding_hidden_mapping_in"),
            blocks=BlockNames(
                layer="encoder.albert_layer_groups.{}.albert_layers.0.",
                query="attention.query",
                key="attention.key",
                value="attention.value",
                out="attention.dense",
                norm1="attention.LayerNorm",
                up="ffn",
                down="ffn_output",
                norm2="full_layer_layer_norm",
            ),
        ),
    ),
    defaults={**BERT.defaults, "embedding_size": 128, "hidden_act": "gelu_new", "num_hidden_groups": 1},
    expected={**BERT.expected, "inner_group_num": 1},
    describe=_describe,
)
