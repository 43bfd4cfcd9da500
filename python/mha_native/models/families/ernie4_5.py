"""ERNIE 4.5 without experts: Llama with rotated pairs of neighbours."""

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import GENERATION
from .llama import FAMILY as LLAMA

FAMILY = LLAMA._replace(
    model_types=("ernie4_5",),
    roles=frozenset({GENERATION}),
    defaults={
        **LLAMA.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    biases={"use_bias": ATTENTION | FEED_FORWARD},
    bases={"": ("rope_theta", 500_000.0)},
    interleaved=True,
)
