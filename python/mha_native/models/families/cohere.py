"""Cohere's Command R: parallel layers with one norm, rotated pairs of neighbours, and scaled logits."""

from ..architecture.config import ATTENTION
from ..architecture.family import GENERATION
from .llama import FAMILY as LLAMA

FAMILY = LLAMA._replace(
    model_types=("cohere",),
    roles=frozenset({GENERATION}),
    # There is no entry for biases of norms; the default here says that there are none.
    keys=LLAMA.keys._replace(eps="layer_norm_eps", norm_bias="norm_bias", logit_scale="logit_scale"),
    defaults={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "norm_bias": False,
        "logit_scale": 0.0625,
        "tie_word_embeddings": True,
    },
    refused={
        **LLAMA.refused,
        "use_qk_norm": "norms with other weights for each head are unsupported",
        "norm_bias": "norms of this family have no biases",
    },
    norm="layer",
    norms=frozenset({"norm1"}),
    parallel=True,
    biases={"attention_bias": ATTENTION},
    bases={"": ("rope_theta", 500_000.0)},
    interleaved=True,
)
