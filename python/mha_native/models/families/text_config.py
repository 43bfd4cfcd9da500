"""What config.json says of a text encoder, of whichever family."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...layers._constructor_arguments import checked_size
from ..architecture.build import BlockConfig, NormConfig
from .family import Family


class TextConfig(NamedTuple):
    """What config.json says of the computation.

    Attributes
    ----------
    max_positions : int
        The most tokens that a text can have.
    num_layers : int
    blocks : tuple of BlockConfig
        One for each layer, or one that all of them have.
    norm : NormConfig, optional
        Of embeddings, before the first layer.
    final_norm : NormConfig, optional
        Behind the last layer.
    first_position : int
        The row of the table of positions that its first token has; the table has as many rows more.
    padding : int, optional
        The token that takes no place, and has the row before the first one; None if every token takes one.
    token_types : int
        0 for a family whose tokens have no types.
    embedding_scale : float
        What rows of the table of words are multiplied with.
    is_causal : bool
        A token sees those before it alone.
    """

    family: Family
    vocab_size: int  # V
    embed_dim: int  # E
    max_positions: int
    num_layers: int
    blocks: tuple[BlockConfig, ...]
    norm: NormConfig | None
    final_norm: NormConfig | None = None
    first_position: int = 0
    padding: int | None = None
    token_types: int = 0
    embedding_scale: float = 1.0
    is_causal: bool = False
    further_sizes: Mapping[str, int] = {}

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self.blocks[0].num_heads

    def block(self, i: int) -> BlockConfig:
        """Layer i."""
        return self.blocks[i if len(self.blocks) > 1 else 0]

    def checked_length(self, function: str, max_length: int) -> int:
        """Return the largest number of tokens of a text, at most `max_length`.

        Raises
        ------
        TypeError, ValueError
            If it is not a size, or beyond the table of positions, in which rows that no token has count, too.
        """
        length, most = checked_size(function, "max_length", max_length), self.max_positions + self.first_position
        if length > most:
            raise ValueError(f"{function}: max_length must be at most {most}, the positions of the model; got {length}")
        return min(length, self.max_positions)

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors that the model is made of."""
        names, width = self.family.names, self.embed_dim
        yield names.words, (self.vocab_size, width)
        if names.positions is not None:
            yield names.positions, (self.first_position + self.max_positions, width)
        if names.token_types is not None and self.token_types:
            yield names.token_types, (self.token_types, width)
        for name, norm in ((names.norm, self.norm), (names.final_norm, self.final_norm)):
            if norm is not None:
                yield f"{name}.weight", (width,)
                if norm.bias:
                    yield f"{name}.bias", (width,)
        for name, sizes in self.family.further_tensors.items():
            yield name, tuple(self.further_sizes.get(size) or getattr(self, size) for size in sizes)
        for i in range(self.num_layers):
            yield from names.blocks.shapes(self.block(i), i)
