"""StarCoder 2: Llama with layer norms, biases, and feed-forwards without a gate."""

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import GENERATION, UNGATED_WITH_SILU
from .llama import FAMILY as LLAMA
from .llama import NAMES
from .mistral import is_sliding, window

FAMILY = LLAMA._replace(
    model_types=("starcoder2",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(eps="norm_epsilon"),
    stacks=(NAMES._replace(blocks=NAMES.blocks._replace(up="mlp.c_fc", down="mlp.c_proj")),),
    defaults={
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "sliding_window": None,
        "use_bias": True,
        "tie_word_embeddings": True,
    },
    norm="layer",
    activations=UNGATED_WITH_SILU,
    biases={"use_bias": ATTENTION | FEED_FORWARD},
    window=window,
    is_sliding=is_sliding,
)
