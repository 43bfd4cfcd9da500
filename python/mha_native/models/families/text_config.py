"""What config.json says of a text encoder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...layers._constructor_arguments import checked_size
from .._blocks import ATTENTION, FEED_FORWARD, BlockConfig, NormConfig
from .._model_config import ABSENT, ACTIVATIONS, refuse_present
from .._model_files import read_choice, read_count, read_positive, read_size
from .family import Family

_DEFAULT_EPS = 1e-12  # of all families


class TextConfig(NamedTuple):
    """What config.json says of the computation.

    Attributes
    ----------
    token_types : int
        0 for a family whose tokens have no types.
    max_positions : int
        The most tokens that a text can have.
    first_position : int
        The row of the table of positions that its first token has; the table has as many rows more.
    padding : int, optional
        The token that takes no place, and has the row before the first one; None if every token takes one.
    activation : str
        Its name in the core.
    """

    family: Family
    vocab_size: int  # V
    embed_dim: int  # E
    num_layers: int
    num_heads: int  # H
    feedforward_dim: int  # F
    max_positions: int
    first_position: int
    padding: int | None
    token_types: int
    activation: str
    eps: float

    def checked_length(self, function: str, max_seq_length: int) -> int:
        """How many of the first `max_seq_length` tokens of a text there can be.

        Raises
        ------
        TypeError, ValueError
            If it is no size, or beyond the table of positions. The rows that no token has count, as they do elsewhere.
        """
        length, most = (
            checked_size(function, "max_seq_length", max_seq_length),
            self.max_positions + self.first_position,
        )
        if length > most:
            raise ValueError(
                f"{function}: max_seq_length must be at most {most}, the positions of the model; got {length}"
            )
        return min(length, self.max_positions)

    further_sizes: dict[str, int]

    @property
    def block(self) -> BlockConfig:
        """Each of the layers."""
        return BlockConfig(
            self.embed_dim,
            self.num_heads,
            self.num_heads,
            self.embed_dim // self.num_heads,
            self.feedforward_dim,
            self.activation,
            NormConfig("layer", self.eps, bias=True),
            norm_first=False,
            biases=ATTENTION | FEED_FORWARD,
        )

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors that the model is made of."""
        names, width = self.family.names, self.embed_dim
        yield names.words, (self.vocab_size, width)
        yield names.positions, (self.first_position + self.max_positions, width)
        if self.token_types:
            yield names.token_types, (self.token_types, width)
        yield f"{names.norm}.weight", (width,)
        yield f"{names.norm}.bias", (width,)
        for name, sizes in self.family.further_tensors.items():
            known = self._asdict() | self.further_sizes
            yield name, tuple(known[size] for size in sizes)
        for i in range(self.num_layers):
            yield from names.blocks.shapes(self.block, i)


def read_sizes(path: Path, values: Mapping[str, Any], families: Mapping[str, Family]) -> TextConfig:
    """The entries of config.json, read from `path`. ValueError if it says what is not computed."""
    family = families[read_choice(path, values, "model_type", None, *families)]
    keys = family.keys
    read_choice(path, values, "position_embedding_type", "absolute", "absolute")
    read_choice(path, values, "is_decoder", False, False)
    read_choice(path, values, "add_cross_attention", False, False)
    refuse_present(path, values, {**ABSENT, **family.absent})
    for name, number in family.fixed.items():
        read_choice(path, values, name, number, number)
    positions = read_size(path, values, "max_position_embeddings")
    padding = None if family.padding is None else read_count(path, values, "pad_token_id", family.padding)
    first = 0 if padding is None else padding + 1
    if positions <= first:
        raise ValueError(
            f"{path}: max_position_embeddings must be more than pad_token_id and 1, behind which positions begin; "
            f"got {positions} and {padding}"
        )
    config = TextConfig(
        family=family,
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=read_size(path, values, keys.embed_dim),
        num_layers=read_size(path, values, keys.num_layers),
        num_heads=read_size(path, values, keys.num_heads),
        feedforward_dim=read_size(path, values, keys.feedforward_dim),
        max_positions=positions - first,
        first_position=first,
        padding=padding,
        token_types=0 if keys.token_types is None else read_size(path, values, keys.token_types, 2),
        activation=ACTIVATIONS[read_choice(path, values, keys.activation, "gelu", *ACTIVATIONS)],
        eps=_DEFAULT_EPS if keys.eps is None else read_positive(path, values, keys.eps, _DEFAULT_EPS),
        further_sizes={name: read_size(path, values, name, default) for name, default in family.further_sizes.items()},
    )
    if config.embed_dim % config.num_heads:
        raise ValueError(
            f"{path}: {keys.embed_dim} must be a multiple of {keys.num_heads}; "
            f"got {config.embed_dim} and {config.num_heads}"
        )
    return config
