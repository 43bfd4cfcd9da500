"""The computation of an encoder-decoder of any family: tokens to a memory, and a memory to tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.dtypes import packed_state, unpacked_state
from ...functions.token_cache import TokenCache
from ...layers.decoder import Decoder
from ...layers.encoder import Encoder
from ..generation import decoding as _decoding
from ..generation.beam_search import BeamRules, BeamSearch, Found, SpecialTokens
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

    def hidden_states(
        self, tokens: NDArray[np.int64], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[Any]:
        """The memory [N, E] of tokens [N] of texts one after another, which begin and end at `cu_seqlens` [B + 1]."""
        x = self._embed(self._parts.encoder, tokens, None, cu_seqlens, num_threads)
        options: Any = self._parts.encoder.options
        y: NDArray[Any] = self._encoder(x, cu_seqlens=cu_seqlens, num_threads=num_threads, **options)
        return y

    def logits(self, memory: NDArray[Any], tokens: NDArray[np.int64], num_threads: int | None) -> NDArray[Any]:
        """The logits [T, V] behind each of the tokens [T] of the decoder, with the memory [S, E] of a text."""
        x = self._embed(self._parts.decoder, tokens, None, np.array([0, len(tokens)]), num_threads)
        options: Any = self._parts.decoder.options
        return self._logits(self._decoder(x[None], memory[None], num_threads=num_threads, **options)[0], num_threads)

    def search(
        self,
        sequences: Sequence[list[int]],
        rules: BeamRules,
        special: SpecialTokens,
        num_threads: int | None,
    ) -> list[Found]:
        """What a search finds for each of some texts, of which the tokens are given."""
        batch, beams = len(sequences), rules.num_beams
        memory_caches = self._memory_caches(sequences, beams, num_threads)
        room = _decoding.Room(self._decoder, batch * beams, min(_decoding.FIRST_ROOM, rules.max_new_tokens))
        searches = [BeamSearch(rules, special) for _ in sequences]
        options: Any = self._parts.decoder.options
        # Sequence i * beams + j of the caches is beam j of text i. A text has one beam at first.
        tokens, counts = np.zeros(batch * beams, np.int64), np.zeros(batch * beams, np.int64)
        tokens[::beams], counts[::beams] = special.start, 1
        rows = np.arange(batch * beams)
        for place in range(rules.max_new_tokens):
            if place == room.capacity:
                room.grow(min(2 * place, rules.max_new_tokens))
            x = self._embed(
                self._parts.decoder, tokens, np.full(len(tokens), place), np.arange(len(tokens) + 1), num_threads
            )
            y = self._decoder(
                x[:, None],
                memory_caches=memory_caches,
                caches=room.caches,
                new_lengths=counts,
                num_threads=num_threads,
                **options,
            )
            going = np.flatnonzero(counts)
            logits = self._logits(y[going, 0], num_threads)
            sources, first = rows.copy(), 0
            counts = np.zeros_like(counts)
            for i, search in enumerate(searches):
                if not search.goes_on:
                    continue
                num_read = len(search.last_tokens)
                parents = search.step(logits[first : first + num_read])
                first += num_read
                begin, end = i * beams, i * beams + len(parents)
                sources[begin:end], counts[begin:end] = begin + parents, 1
                tokens[begin:end] = search.last_tokens[: len(parents)]
            if not counts.any():
                break
            if beams > 1:
                for cache in room.caches:
                    cache.reorder(sources)
        return [search.best for search in searches]

    def _memory_caches(self, sequences: Sequence[list[int]], beams: int, num_threads: int | None) -> list[TokenCache]:
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

    def _logits(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
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
