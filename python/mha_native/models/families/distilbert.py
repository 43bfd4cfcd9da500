"""DistilBERT: BERT without token types, and with other names."""

from ..architecture.family import Keys, StackKeys
from ..architecture.tensor_names import BlockNames
from .bert import FAMILY as BERT
from .bert import NAMES

FAMILY = BERT._replace(
    model_types=("distilbert",),
    prefix="distilbert.",
    # `sinusoidal_pos_embds` says how positions begin in training; the checkpoint has a table in any case.
    keys=Keys(embed_dim="dim", stacks=(StackKeys("n_layers", "n_heads", "hidden_dim"),), activation="activation"),
    stacks=(
        NAMES._replace(
            blocks=BlockNames(
                layer="transformer.layer.{}.",
                query="attention.q_lin",
                key="attention.k_lin",
                value="attention.v_lin",
                out="attention.out_lin",
                norm1="sa_layer_norm",
                up="ffn.lin1",
                down="ffn.lin2",
                norm2="output_layer_norm",
            )
        ),
    ),
    defaults={"activation": "gelu"},
    # transformers takes these for dim, n_layers and n_heads.
    refused=dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), "this family has other names"),
)
