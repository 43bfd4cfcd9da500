"""The heads of encoders of texts about images: from the tokens of texts to vectors that are compared with images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...functions.messages import shown
from ..architecture.model import Model
from ..architecture.open import OpenModel
from ..files.entries import Entries
from ..files.source import Shapes, Tensors
from ..text.agreement import class_of_tokenizer
from ..text.batching import packed
from .dense import Dense

# A text of CLIP ends with this token, or in older files, where the entry is wrong, with the largest of its tokens.
_WRONG_END = 2

# The side at which a tokenizer pads, and its token of padding, where tokenizer_config.json lacks them.
_SIDES = {"GemmaTokenizer": "left", "Siglip2Tokenizer": "left"}
_PADDING = {"SiglipTokenizer": "</s>"}

_OUTPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Padding(NamedTuple):
    """How texts get the same number of tokens."""

    token: int
    length: int
    is_left: bool
    is_seen: bool  # whether other tokens see the padding, as they see each other


class TextHeadConfig(NamedTuple):
    """The row of a text that counts, and a linear map."""

    linear: str  # the prefix of its tensors
    embed_dim: int  # E
    features: int
    has_bias: bool
    # The token that ends texts, whose first row counts; None: the row of the largest token. Without padding only.
    end: int | None = None
    padding: Padding | None = None  # of texts whose last row counts

    def tensor_shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        yield f"{self.linear}.weight", (self.features, self.embed_dim)
        if self.has_bias:
            yield f"{self.linear}.bias", (self.features,)


def text_head_of(
    opened: OpenModel, entries: Entries, folder: Path, tokenizer: Any, settings: Mapping[str, Any], length: int
) -> TextHeadConfig:
    """Return the head of an encoder of texts.

    `entries` are those of its section of config.json, `tokenizer` is the ``tokenizers.Tokenizer``, with the entries
    `settings` of tokenizer_config.json. Texts have up to `length` tokens.

    Raises ValueError if the files ask for an unsupported feature.
    """
    width = opened.config.embed_dim
    if opened.config.stacks[0].is_causal:
        end = entries.count("eos_token_id")
        if end != _WRONG_END and end >= opened.config.vocab_size:
            raise ValueError(f"{entries.path}: eos_token_id must be a token of the model; got {end}")
        features = Entries(opened.source.path, opened.source.config).size("projection_dim", 512)
        return TextHeadConfig("text_projection", width, features, False, None if end == _WRONG_END else end)
    padding = _padding(folder, tokenizer, settings, length)
    return TextHeadConfig("head", width, entries.size_or_none("projection_size") or width, True, padding=padding)


def _padding(folder: Path, tokenizer: Any, settings: Mapping[str, Any], length: int) -> Padding:
    path, kind = folder / "tokenizer_config.json", (class_of_tokenizer(folder, settings) or "").removesuffix("Fast")
    entries = Entries(path, settings)
    side = entries.choice("padding_side", "left", "right", default=_SIDES.get(kind, "right"))
    outputs = settings.get("model_input_names", ["input_ids", "attention_mask"])
    if not isinstance(outputs, list) or "input_ids" not in outputs or any(name not in _OUTPUTS for name in outputs):
        raise ValueError(f"{path}: model_input_names must be a list of {' and '.join(_OUTPUTS)}; got {shown(outputs)}")
    is_seen = "attention_mask" not in outputs
    if side == "left" and not is_seen:
        raise ValueError(f"{path}: padding_side must be 'right' where model_input_names has attention_mask; got 'left'")
    given = settings.get("pad_token") or _PADDING.get(kind, "<pad>")
    name = given.get("content") if isinstance(given, dict) else given
    token = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if token is None:
        raise ValueError(f"{path}: pad_token must be a token of tokenizer.json; got {shown(given)}")
    return Padding(token, length, side == "left", is_seen)


class TextHead:
    """A head with its weights, always in float32."""

    def __init__(self, config: TextHeadConfig, tensors: Tensors) -> None:
        self.config = config
        bias = tensors[f"{config.linear}.bias"] if config.has_bias else None
        self._linear = Dense(tensors[f"{config.linear}.weight"], bias, "torch.nn.Identity")

    def __call__(self, model: Model, texts: Sequence[list[int]], num_threads: int | None) -> NDArray[np.float32]:
        """Return the vectors [N, features] of the tokens of N texts, which go through `model` first."""
        if self.config.padding is None:
            tokens, cu_seqlens = packed(texts)
            rows = model.hidden_states(tokens, cu_seqlens, num_threads)
            last = rows[cu_seqlens[:-1] + [self._end(np.array(text)) for text in texts]]
        else:
            last = self._padded_rows(self.config.padding, model, texts, num_threads)
        return self._linear(widened(last).astype(np.float32, copy=False), num_threads)

    def length_of(self, text: list[int]) -> int:
        """Return the number of rows that a text takes in the layers."""
        return len(text) if self.config.padding is None else self.config.padding.length

    def _end(self, text: NDArray[np.int64]) -> int:
        """Return the place of the row of a text that counts."""
        return int(np.argmax(text if self.config.end is None else text == self.config.end))

    def _padded_rows(
        self, padding: Padding, model: Model, texts: Sequence[list[int]], num_threads: int | None
    ) -> NDArray[Any]:
        """Return the last row [N, E] of each text."""
        whole = []
        for text in texts:
            more = [padding.token] * (padding.length - len(text))
            whole.append(more + text if padding.is_left else text + more)
        tokens, cu_seqlens = packed(whole)
        stack, size = model.stacks[0], len(texts)
        if padding.is_seen:
            return model.hidden_states(tokens, cu_seqlens, num_threads).reshape(size, padding.length, -1)[:, -1]
        x = stack.front_end(tokens, cu_seqlens, num_threads).reshape(size, padding.length, -1)
        lengths = np.array([len(text) for text in texts])
        rows: NDArray[Any] = stack.run(x, key_lengths=lengths, num_threads=num_threads)
        return rows[:, -1]
