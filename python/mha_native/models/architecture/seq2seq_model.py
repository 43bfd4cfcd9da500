"""The computation of an encoder-decoder of any family: tokens to a memory, and a memory to tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.dtypes import packed_state, unpacked_state
from ...functions.kv_cache import KVCache
from ...layers._constructor_arguments import WeightDType
from ...layers._layer_options import in_dtype_of_scores
from ...layers.decoder import Decoder
from ...layers.encoder import Encoder
from ..generation.engine import CachedModel, NewTokens, read_padded
from ..seq2seq.opening import Seq2SeqParts, StackParts
from ..text.batching import packed
from .build import in_dtype


class Seq2SeqModel:
    """Embeddings, encoder, decoder and head.

    Parameters
    ----------
    parts : Seq2SeqParts
    """

    def __init__(self, parts: Seq2SeqParts) -> None:
        self.config = parts.config
        self._parts = parts
        self._encoder = Encoder.from_layers(parts.encoder.layers, parts.encoder.final_norm)
        self._decoder = Decoder.from_layers(parts.decoder.layers, parts.decoder.final_norm)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._encoder.layers[0].dtype  # type: ignore[no-any-return]

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as, by name."""
        return self._encoder.layers[0].weight_dtype  # type: ignore[no-any-return]

    @property
    def num_layers(self) -> int:
        """Number of layers of the encoder."""
        return len(self._parts.encoder.layers)

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self.config.encoder[0].num_heads

    @property
    def max_length(self) -> int | None:
        """P, the number of positions; None if any number of tokens is read."""
        return self.config.max_positions

    def astype(self, dtype: np.dtype[Any]) -> "Seq2SeqModel":
        """The same model in another dtype."""

        def converted(stack: StackParts) -> StackParts:
            return StackParts(
                [layer.astype(dtype) for layer in stack.layers],
                {name: in_dtype(table, dtype) for name, table in stack.tables.items()},
                None if stack.final_norm is None else stack.final_norm.astype(dtype),
                dict(in_dtype_of_scores(stack.options, dtype)),
            )

        parts = self._parts
        encoder, decoder = converted(parts.encoder), converted(parts.decoder)
        words, head = in_dtype(parts.words, dtype), parts.head.astype(dtype)
        return Seq2SeqModel(parts._replace(words=words, encoder=encoder, decoder=decoder, head=head))

    def quantize(self, weight_dtype: WeightDType) -> "Seq2SeqModel":
        """The same model with the matrices of its layers and of its head in another format."""
        encoder, decoder = (
            stack._replace(layers=[layer.quantize(weight_dtype) for layer in stack.layers])
            for stack in (self._parts.encoder, self._parts.decoder)
        )
        head = self._parts.head.quantize(weight_dtype)
        return Seq2SeqModel(self._parts._replace(encoder=encoder, decoder=decoder, head=head))

    def hidden_states(
        self, tokens: NDArray[np.int64], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[Any]:
        """The memory [N, E] of tokens [N] of texts one after another, which begin and end at `cu_seqlens` [B + 1]."""
        x = self._embed(self._parts.encoder, tokens, None, cu_seqlens, num_threads)
        options: Any = self._parts.encoder.options
        y: NDArray[Any] = self._encoder(x, cu_seqlens=cu_seqlens, num_threads=num_threads, **options)
        return y

    def target_logits(self, memory: NDArray[Any], tokens: NDArray[np.int64], num_threads: int | None) -> NDArray[Any]:
        """The logits [T, V] after each of the tokens [T] of the decoder, with the memory [S, E] of a text."""
        x = self._embed(self._parts.decoder, tokens, None, np.array([0, len(tokens)]), num_threads)
        options: Any = self._parts.decoder.options
        return self.logits(self._decoder(x[None], memory[None], num_threads=num_threads, **options)[0], num_threads)

    def cached(self, sequences: Sequence[list[int]], copies: int, num_threads: int | None) -> CachedModel:
        """The decoder as the engine of generation uses it, with the memory of texts, each for `copies` slots."""
        memory_caches, stack = self._memory_caches(sequences, copies, num_threads), self._parts.decoder
        calls: Any = {"memory_caches": memory_caches, "num_threads": num_threads, **stack.options}

        def read(new: NewTokens, caches: list[Any]) -> NDArray[Any]:
            x = self._embed(stack, new.tokens, new.places, new.cu_seqlens, num_threads)
            return read_padded(self._decoder, x, new, caches[0].batch_size, caches=caches, **calls)

        return CachedModel(stack.layers, read, lambda rows: self.logits(rows, num_threads))

    def _memory_caches(self, sequences: Sequence[list[int]], beams: int, num_threads: int | None) -> list[KVCache]:
        """Keys and values of the memory of each text in every layer of the decoder, for each of its beams."""
        tokens, cu_seqlens = packed(sequences)
        rows, lengths = self.hidden_states(tokens, cu_seqlens, num_threads), np.diff(cu_seqlens)
        memory = np.zeros((len(sequences), int(lengths.max()), rows.shape[1]), rows.dtype)
        for i, length in enumerate(lengths):
            memory[i, :length] = rows[cu_seqlens[i] : cu_seqlens[i + 1]]
        caches = self._decoder.project_memory(memory, memory_lengths=lengths, num_threads=num_threads)
        if beams == 1:
            return caches
        for i, (layer, cache) in enumerate(zip(self._decoder.layers, caches, strict=True)):
            caches[i] = layer.cross_attn.new_cache(len(sequences) * beams, cache.capacity)
            caches[i].append(*(np.repeat(x, beams, axis=0) for x in (cache.keys, cache.values, cache.lengths)))
        return caches

    def _embed(
        self,
        stack: StackParts,
        tokens: NDArray[np.int64],
        places: NDArray[np.int64] | None,
        cu_seqlens: NDArray[np.int64],
        num_threads: int | None,
    ) -> NDArray[Any]:
        """What the first layer of a stack reads, [N, E]. Without `places` they are those in the texts."""
        words, tables = self._parts.words, stack.tables
        if "positions" not in tables:
            return words[tokens]
        if "norm_weight" not in tables:
            if places is None:
                places = np.concatenate([np.arange(length) for length in np.diff(cu_seqlens)])
            return in_dtype(widened(words[tokens]) + widened(tables["positions"][places]), self.dtype)
        return _core.embed_tokens(
            tokens,
            places,
            cu_seqlens,
            words,
            tables["positions"],
            tables.get("norm_weight"),
            tables.get("norm_bias"),
            self.config.norm.eps,
            None,
            num_threads,
        )

    def logits(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """The logits [N, V] of rows [N, E]; of a model in 16 bits in float32."""
        logits = widened(self._parts.head(rows, num_threads=num_threads))
        if self.config.output_scale != 1:
            logits = logits * self.config.output_scale
        return logits if self._parts.logit_bias is None else logits + self._parts.logit_bias

    def __getstate__(self) -> dict[str, Any]:
        tables = _tables(self._parts)
        return {
            "parts": _with_tables(self._parts, {name: {} for name in tables}),
            "tables": {name: packed_state(of_part) for name, of_part in tables.items()},
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        tables = {name: unpacked_state(of_part) for name, of_part in saved["tables"].items()}
        self.__init__(_with_tables(saved["parts"], tables))  # type: ignore[misc]


def _tables(parts: Seq2SeqParts) -> dict[str, dict[str, NDArray[Any]]]:
    return {"words": {"": parts.words}, "encoder": parts.encoder.tables, "decoder": parts.decoder.tables}


def _with_tables(parts: Seq2SeqParts, tables: Mapping[str, dict[str, NDArray[Any]]]) -> Seq2SeqParts:
    """The same parts with other tables, or with none."""
    words: Any = tables["words"].get("")
    encoder, decoder = (getattr(parts, name)._replace(tables=tables[name]) for name in ("encoder", "decoder"))
    return parts._replace(words=words, encoder=encoder, decoder=decoder)
