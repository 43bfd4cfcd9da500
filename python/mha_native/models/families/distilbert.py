"""DistilBERT: no types of tokens, and names of its own."""

from ..architecture.tensor_names import BlockNames
from .family import Family, Keys, Names

FAMILY = Family(
    model_types=("distilbert",),
    prefix="distilbert.",
    # `sinusoidal_pos_embds` says how positions begin when a model is trained; the file has them in any case.
    keys=Keys(
        embed_dim="dim",
        num_layers="n_layers",
        num_heads="n_heads",
        feedforward_dim="hidden_dim",
        activation="activation",
        eps=None,
        token_types=None,
    ),
    names=Names(
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
    # transformers takes these for dim, n_layers and n_heads.
    absent=dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), "this family has other names"),
)
