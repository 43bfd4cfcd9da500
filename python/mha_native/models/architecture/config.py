"""The computation of a model, as data: front ends, stacks of blocks, and a head."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...functions.options import ModelOptions
from ...layers._constructor_arguments import checked_size
from ..front_ends.tokens import TokensConfig
from .norms import NormConfig
from .rotary import RotaryConfig

# The names of the matrix products of a block, and of their biases.
ATTENTION = frozenset({"query", "key", "value", "out"})
FEED_FORWARD = frozenset({"gate", "up", "down"})
MEMORY = frozenset({"memory_query", "memory_key", "memory_value", "memory_out"})
POSITIONS = frozenset({"position_key", "position_query"})

# Norms of a block: before or after its sublayers, and of the outputs of sublayers before they are added.
NORMS = frozenset({"norm1", "norm2"})
OUTPUT_NORMS = frozenset({"output_norm1", "output_norm2"})


class ExpertsConfig(NamedTuple):
    """Experts in place of a feed-forward network: see `mha_native.Experts`, which has the same terms."""

    num_experts: int  # N
    experts_per_token: int
    feedforward_dim: int  # F of each expert
    scores: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    has_correction: bool = False  # whether scores are corrected where experts are chosen
    shared_dim: int | None = None  # F of the shared expert
    has_shared_gate: bool = False
    # The tensors of files: one for each matrix of an expert, or for gpt-oss "stacked", or "mxfp4", stacked in blocks.
    layout: str = ""


class BlockConfig(NamedTuple):
    """A layer: self-attention, optional attention to a memory, and a feed-forward, with norms and residual sums."""

    embed_dim: int  # E
    num_heads: int  # H
    num_kv_heads: int  # Hk
    head_dim: int  # D
    feedforward_dim: int  # F
    activation: str
    norm: NormConfig  # the kind of every norm of the layer
    # The norms of the layer, from `NORMS` and `OUTPUT_NORMS`. A layer that reads a memory also has ``memory_norm``.
    norms: frozenset[str] = NORMS
    # Whether norms apply to the input of a sublayer (pre-LN), not to the sum after it (post-LN).
    norm_first: bool = True
    # Whether the feed-forward reads the input of the layer, not its sum with the attention. Without ``norm2`` it reads
    # ``norm1(x)``, as the attention does.
    parallel: bool = False
    # Whether the feed-forward is ``down(activation(gate(x)) * up(x))``, not ``down(activation(up(x)))``.
    gated: bool = False
    biases: frozenset[str] = frozenset()  # the products with a bias, from `ATTENTION`, `MEMORY` and `FEED_FORWARD`
    # The norm of each head of queries and keys, before rotation; of the kind "rms_joint": of all heads together.
    qk_norm: NormConfig | None = None
    rotary: RotaryConfig | None = None  # the rotation of queries and keys
    window: tuple[int, int] | None = None  # the numbers of keys before and after itself that a query sees; -1: all
    scale: float | None = None  # the factor of scores; None: ``1 / sqrt(D)``
    softcap: float | None = None  # scores become ``softcap * tanh(score / softcap)``
    reads_memory: bool = False  # whether there is attention to a memory between the other two sublayers
    # The products of relative positions, from `POSITIONS`, that are not those of queries and keys.
    own_positions: frozenset[str] = frozenset()
    experts: ExpertsConfig | None = None  # in place of one feed-forward of F features
    has_sinks: bool = False  # whether each head has a score of a key without a value
    # Whether each feature of the outputs of both sublayers has a factor, with which weights are multiplied when read.
    has_scales: bool = False

    @property
    def options(self) -> ModelOptions:
        """The score options of the self-attention."""
        options: Any = {name: getattr(self, name) for name in ("window", "scale", "softcap")}
        return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]

    def products(self) -> dict[str, tuple[int, int]]:
        """Return the matrix products, each with the shape of its matrix: [output features, input features]."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        width = self.embed_dim
        shapes = {"query": (heads, width), "key": (kv_heads, width), "value": (kv_heads, width), "out": (width, heads)}
        memory = {f"memory_{part}": shape for part, shape in shapes.items()} if self.reads_memory else {}
        positions = dict.fromkeys(sorted(self.own_positions), shapes["query"])
        shapes |= positions | memory
        if self.experts is None:
            return shapes | self._feed_forward("", self.feedforward_dim)
        routers = {"router": (self.experts.num_experts, width)}
        if self.experts.has_shared_gate:
            routers["shared_gate"] = (1, width)
        for i in range(self.experts.num_experts):
            routers |= self._feed_forward(f"experts.{i}.", self.experts.feedforward_dim)
        if self.experts.shared_dim is not None:
            routers |= self._feed_forward("shared.", self.experts.shared_dim)
        return shapes | routers

    def has_bias(self, product: str) -> bool:
        """Return whether the matrix product of this name adds a bias."""
        return product in self.biases or product.split(".")[-1] in self.biases & FEED_FORWARD

    def _feed_forward(self, prefix: str, inner: int) -> dict[str, tuple[int, int]]:
        gate = {f"{prefix}gate": (inner, self.embed_dim)} if self.gated else {}
        return {**gate, f"{prefix}up": (inner, self.embed_dim), f"{prefix}down": (self.embed_dim, inner)}

    def all_norms(self) -> Iterator[tuple[str, int, NormConfig]]:
        """Yield the norms, each with the number of its features."""
        for name in sorted(self.norms) + ["memory_norm"] * self.reads_memory:
            yield name, self.embed_dim, self.norm
        if self.qk_norm is not None:
            heads, kv_heads = (self.num_heads, self.num_kv_heads) if self.qk_norm.kind == "rms_joint" else (1, 1)
            yield "query_norm", heads * self.head_dim, self.qk_norm
            yield "key_norm", kv_heads * self.head_dim, self.qk_norm


class BucketsConfig(NamedTuple):
    """A bias of scores by the distance of query and key: see `position_bias_of_buckets`."""

    num_buckets: int
    max_distance: int


class RelativeConfig(NamedTuple):
    """Disentangled attention: scores of rows and relative positions, as `disentangled` computes them."""

    span: int  # half the rows of the table of positions
    max_distance: int | None  # the distance of the last row; rows are then finer for near keys. None: a row for each
    norm: NormConfig | None  # of the rows of the table
    to_positions: bool  # whether queries are compared with positions
    from_positions: bool  # whether keys are compared with positions


class StackConfig(NamedTuple):
    """A front end, blocks one after another, and a norm after the last."""

    # The rows that the first block reads. Each stack has its own front end, as in BART with two sets of positions.
    front_end: Any  # a `TokensConfig`, a `FramesConfig` or a `PatchesConfig`
    blocks: tuple[BlockConfig, ...]  # one for each layer
    final_norm: NormConfig | None
    is_causal: bool = False  # whether a row sees no row after itself
    buckets: BucketsConfig | None = None  # the position bias of all layers, or of each
    relative: RelativeConfig | None = None
    # The number of each block in the checkpoint, where blocks of one number are one layer. Default: 0, 1, ...
    numbers: tuple[int, ...] = ()

    def numbered(self) -> dict[int, BlockConfig]:
        """Return the blocks of the checkpoint by their numbers."""
        return dict(zip(self.numbers or range(len(self.blocks)), self.blocks, strict=True))

    @property
    def reads_memory(self) -> bool:
        """Whether a block reads a memory, the rows of the stack before this one."""
        return any(block.reads_memory for block in self.blocks)


class HeadConfig(NamedTuple):
    """A language head: logits of all tokens from a row."""

    is_tied: bool = True  # whether the matrix of the head is the word table
    scale: float = 1.0  # the factor of logits
    softcap: float | None = None  # logits become ``softcap * tanh(logit / softcap)``


class ModelConfig(NamedTuple):
    """The computation of a model."""

    stacks: tuple[StackConfig, ...]  # one, or an encoder and a decoder that reads the rows of the encoder
    head: HeadConfig | None = None  # None: the results are rows

    @property
    def reads_tokens(self) -> bool:
        """Whether the last stack reads tokens, and there is a word table."""
        return isinstance(self.stacks[-1].front_end, TokensConfig)

    @property
    def tokens(self) -> TokensConfig:
        """The front end of the last stack, which reads tokens. ValueError for a model of images."""
        front_end = self.stacks[-1].front_end
        if not isinstance(front_end, TokensConfig):
            raise ValueError("a model of images has no tokens")
        return front_end

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return self.tokens.vocab_size

    @property
    def embed_dim(self) -> int:
        """E, the features of a row."""
        width: int = self.stacks[-1].front_end.embed_dim
        return width

    @property
    def max_positions(self) -> int | None:
        """P, the largest number of tokens of a text; None: any number."""
        return self.tokens.max_positions

    def checked_length(self, function: str, max_length: int) -> int:
        """Return the largest number of tokens of a text, at most `max_length`.

        Raises TypeError or ValueError if `max_length` is not a size, or more than the rows of the table of positions,
        unused rows included.
        """
        length, front_end = checked_size(function, "max_length", max_length), self.tokens
        if front_end.max_positions is None:
            return length
        most = front_end.max_positions + front_end.first_position
        if length > most:
            raise ValueError(f"{function}: max_length must be at most {most}, the positions of the model; got {length}")
        return min(length, front_end.max_positions)
