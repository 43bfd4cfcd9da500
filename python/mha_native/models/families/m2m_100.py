"""M2M-100 and NLLB, which translate: mBART without a norm of embeddings, and with sines for positions after padding."""

from ..architecture.tensor_names import HeadNames
from .bart import names
from .mbart import FAMILY as MBART

_STACKS = names(embedding_norm=False, final_norm=True)

FAMILY = MBART._replace(
    model_types=("m2m_100",),
    keys=MBART.keys._replace(padding="pad_token_id"),
    # The table of positions of older checkpoints has another name; transformers does not read it.
    stacks=tuple(stack._replace(front_end=stack.front_end._replace(positions="")) for stack in _STACKS),
    head=HeadNames(is_optional=True),
    defaults={
        **MBART.defaults,
        "vocab_size": 128112,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    },
    sines="inclusive",
    text_files=("sentencepiece.bpe.model",),
)
