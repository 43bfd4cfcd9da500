"""Whisper: speech to text. The encoder reads frames of a log-mel spectrogram, the decoder reads its rows."""

from ..architecture.config import ATTENTION, FEED_FORWARD, MEMORY
from ..architecture.family import SPEECH_TO_TEXT, Family
from ..architecture.tensor_names import HeadNames
from ..front_ends.frames import FramesNames
from ..front_ends.tokens import TokensNames
from . import bart

_ENCODER, _DECODER = bart.names(final_norm=True)

FAMILY = Family(
    model_types=("whisper",),
    roles=frozenset({SPEECH_TO_TEXT}),
    keys=bart.FAMILY.keys._replace(
        max_positions="max_target_positions", mel_bins="num_mel_bins", max_rows="max_source_positions"
    ),
    stacks=(
        _ENCODER._replace(front_end=FramesNames()),
        _DECODER._replace(
            front_end=TokensNames(words=("decoder.embed_tokens.weight",), positions="decoder.embed_positions.weight")
        ),
    ),
    head=HeadNames("proj_out.weight", is_optional=True),
    defaults={
        "vocab_size": 51865,
        "num_mel_bins": 80,
        "d_model": 384,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 4),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 6),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1536),
        "activation_function": "gelu",
        "scale_embedding": False,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "tie_word_embeddings": True,
    },
    expected={"is_encoder_decoder": True, "scale_embedding": False},
    eps=1e-5,
    # Keys have no bias, which would change no weight of attention.
    biases={"": (ATTENTION | MEMORY | FEED_FORWARD) - {"key", "memory_key"}},
    is_causal=True,
)
