"""Transformers on torch, with fused attention: its BERT and ModernBERT with mean pooling, CLIP, ViT and Llama."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program
from mha_native_bench.contenders.peers.text_batches import Batches, forms, in_order
from mha_native_bench.contenders.peers.torch_peer import array_of, turn
from mha_native_bench.contenders.peers.transformers_decoder import decoder_programs
from mha_native_bench.contenders.peers.transformers_experts import experts_programs

transformers.logging.set_verbosity_error()  # else it lists the weights that it does not load
transformers.logging.disable_progress_bar()


class Transformers(Contender):
    name = "transformers"
    kinds_of_few = frozenset({"experts"})

    def description(self) -> str:
        return f"{transformers.__version__} on torch {torch.__version__}; sdpa; threads and mode as torch"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind == "decoder":
            return decoder_programs(self.name, case, inputs, threads)
        if case.kind == "experts":
            return experts_programs(self.name, case, inputs, threads)
        if case.kind == "images":
            return self._images(case, inputs, threads)
        if case.kind != "sentences":
            raise CannotCompute("models only")
        if case.weights:  # dynamic quantization gives all rows of a batch one scale
            raise CannotCompute("int8 embeddings off by a third, and no 4 bits")
        if case.dtype not in ("f32", "bf16"):
            raise CannotCompute(f"no {case.dtype_name} here")
        embed = load_embedder(inputs.model, case.dtype, case.family)

        def program(variant: str, order: list[int], batches: Batches) -> Program:
            tensors = [tuple(map(torch.from_numpy, batch)) for batch in batches]
            return Program(
                self.name,
                threads,
                lambda: [embed(*batch) for batch in tensors],
                turn(threads, True),
                lambda parts: in_order(order, [array_of(part) for part in parts]),
                variant,
            )

        return [program(*form) for form in forms(case, inputs)]

    def _images(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.weights or case.dtype not in ("f32", "bf16"):
            raise CannotCompute(f"no {case.weights or case.dtype_name} here")
        model = load_vit(inputs.model, case.dtype)
        pixels = torch.from_numpy(inputs.arrays[0]).to(model.dtype)
        run = lambda: model(pixel_values=pixels).last_hidden_state[:, 0]  # noqa: E731
        return [Program(self.name, threads, run, turn(threads, True), array_of)]


class Embedder(torch.nn.Module):  # type: ignore[misc]  # a class without types
    """Token ids [B, T], and a mask [B, T] if there is padding, to embeddings [B, E] of length 1."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return functional.normalize(self.pooled(ids, mask), dim=-1)

    def pooled(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The mean of the rows of a text, [B, E]."""
        rows = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            mean: torch.Tensor = rows.mean(dim=1)
        else:
            unmasked = mask[..., None].to(rows.dtype)
            mean = (rows * unmasked).sum(dim=1) / unmasked.sum(dim=1)
        return mean


class ClipEmbedder(Embedder):
    """The same for CLIP, which pools by itself."""

    def pooled(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        vectors: torch.Tensor = self.encoder(input_ids=ids, attention_mask=mask).text_embeds
        return vectors


@lru_cache(maxsize=1)
def load_vit(directory: Path, dtype: str) -> Any:
    """The model of images, shared by all numbers of threads."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    options = {"attn_implementation": "sdpa", "add_pooling_layer": False}
    return transformers.ViTModel.from_pretrained(directory, dtype=kind, **options).eval()


@lru_cache(maxsize=1)
def load_embedder(directory: Path, dtype: str, family: str) -> Embedder:
    """The model, shared by all numbers of threads."""
    classes: dict[str, Any] = {
        "": transformers.BertModel,
        "modernbert": transformers.ModernBertModel,
        "clip_text": transformers.CLIPTextModelWithProjection,
    }
    model, options = classes[family], {} if family else {"add_pooling_layer": False}
    encoder = model.from_pretrained(
        directory, attn_implementation="sdpa", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, **options
    )
    embedder: Embedder = (ClipEmbedder if family == "clip_text" else Embedder)(encoder).eval()
    return embedder
