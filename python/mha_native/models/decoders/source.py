"""What passes between files of models, families of decoders, and what generates text."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from ...functions.options import ModelOptions
from ...layers.encoder import EncoderLayer
from ...layers.linear import Linear
from ...layers.norm import Norm
from ..architecture.build import BlockConfig, NormConfig
from ..architecture.tensor_names import Tensors


class ModelSource(Protocol):
    """The files of one model, in the words of a folder of Hugging Face.

    Attributes
    ----------
    path : Path
        What messages call the source of `config`: config.json in the folder, or the one file of the model.
    config : mapping
        What config.json says, by its keys.
    generation : mapping
        What generation_config.json says, such as ``eos_token_id``; empty without the file.
    chat_template : str, optional
        In Jinja.
    tokenizer_config : mapping
        What tokenizer_config.json says; empty without the file.
    """

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def generation(self) -> Mapping[str, Any]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def tokenizer_config(self) -> Mapping[str, Any]: ...

    def tokenizer(self) -> Any:
        """The ``tokenizers.Tokenizer``, which neither pads nor truncates."""
        ...

    def tensors(
        self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = ""
    ) -> AbstractContextManager[Tensors]:
        """The tensors of `shapes`, in float32. All names and shapes have been checked when it is entered.

        Names are those of transformers without `prefix`, such as ``layers.0.self_attn.q_proj.weight`` where the prefix
        is ``model.``: in the files of a folder a name may begin with it, or not.
        """
        ...


class DecoderConfig(NamedTuple):
    """What a decoder computes besides its layers.

    Attributes
    ----------
    trained_positions : int
        What config.json says.
    max_positions : int
        P, the most tokens of a text that the model is opened for.
    final_norm : NormConfig
        Behind the last layer.
    embedding_scale : float
        What the embeddings of the file are multiplied with, as those of `LanguageModelParts` have been.
    logit_softcap : float, optional
        Logits become ``softcap * tanh(logit / softcap)``.
    is_tied : bool
        The head has the numbers of the embeddings.
    has_positions : bool
        Positions are learned, and added to embeddings.
    """

    vocab_size: int  # V
    embed_dim: int  # E
    trained_positions: int
    max_positions: int
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    is_tied: bool = True
    has_positions: bool = False


class LanguageModelParts(NamedTuple):
    """A decoder, as `open_decoder` makes it of a source: ``head(final_norm(layers(embeddings[tokens] + positions)))``.

    Attributes
    ----------
    embeddings : [V, E]
        Of tokens, in the dtype of the layers, and multiplied with `embedding_scale`.
    layers : list of EncoderLayer
        Which are causal where they are called so.
    layer_options : list of dict
        The score options of each layer: window, scale and softcap. All are causal besides.
    final_norm : Norm
    head : Linear
        From rows [..., E] to logits [..., V].
    positions : [P, E], optional
        Learned positions.
    """

    config: DecoderConfig
    embeddings: NDArray[Any]
    layers: list[EncoderLayer]
    layer_options: list[ModelOptions]
    final_norm: Norm
    head: Linear
    positions: NDArray[Any] | None = None
