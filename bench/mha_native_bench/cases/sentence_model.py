"""Weights, inputs and oracles of encoder layers and of sentence models, and the directory that such a model lies in."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mha_native import reference

if TYPE_CHECKING:
    from mha_native_bench.cases.case import Case

Array = NDArray[Any]

VOCABULARY, POSITIONS = 30522, 512  # of BERT, uncased
EPS = 1e-12  # of its norms; in torch's layers 1e-5


def layer_state(case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """One layer in the names of `torch.nn.TransformerEncoderLayer`, in float64. No weight may be forgotten unseen."""
    width, hidden = case.E, case.F

    def uniform(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape) * shape[-1] ** -0.5

    state = {
        "self_attn.in_proj_weight": uniform(3 * width, width),
        "self_attn.in_proj_bias": uniform(3 * width),
        "self_attn.out_proj.weight": uniform(width, width),
        "self_attn.out_proj.bias": uniform(width),
        "linear1.weight": uniform(hidden, width),
        "linear1.bias": uniform(hidden),
        "linear2.weight": uniform(width, hidden),
        "linear2.bias": uniform(width),
    }
    for norm in ("norm1", "norm2"):
        state[f"{norm}.weight"], state[f"{norm}.bias"] = 1 + uniform(width), uniform(width)
    return state


# Of a layer: a BERT's names, and torch's.
BERT_NAMES = {
    "attention.output.dense": "self_attn.out_proj",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "attention.output.LayerNorm": "norm1",
    "output.LayerNorm": "norm2",
}
PROJECTIONS = [f"attention.self.{name}" for name in ("query", "key", "value")]


class Models:
    """Where the model of a case lies: the one that was given, or one with random weights, written when it is asked for.

    A context manager: what was written goes when it ends.
    """

    def __init__(self, given: Path | None) -> None:
        self._given = given
        self._written: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written is not None:
            self._written.cleanup()

    def directory(self, case: Case) -> Path | None:
        """None for a case that needs no model."""
        if case.kind != "sentences":
            return None
        if self._given is not None:
            check_model(case, self._given)
            return self._given
        if self._written is None:
            self._written = TemporaryDirectory()
        sizes = f"{case.layers} {case.E} {case.H} {case.F} {case.activation}"
        directory = Path(self._written.name) / sizes
        if not directory.exists():
            directory.mkdir()
            write_model(case, directory)
        return directory


def write_model(case: Case, directory: Path) -> None:
    """A BERT of the sizes of `case` with random weights, which time does not depend on."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, np.float32) * np.float32(0.1)

    tensors = {
        "embeddings.word_embeddings.weight": normal(VOCABULARY, case.E),
        "embeddings.position_embeddings.weight": normal(POSITIONS, case.E),
        "embeddings.token_type_embeddings.weight": normal(2, case.E),
        "embeddings.LayerNorm.weight": 1 + normal(case.E),
        "embeddings.LayerNorm.bias": normal(case.E),
    }
    for i in range(case.layers):
        state = {name: array.astype(np.float32) for name, array in layer_state(case, rng).items()}
        for end in ("weight", "bias"):
            parts = np.split(state[f"self_attn.in_proj_{end}"], 3)
            named = dict(zip(PROJECTIONS, parts, strict=True))
            named |= {name: state[f"{torch_name}.{end}"] for name, torch_name in BERT_NAMES.items()}
            tensors |= {f"encoder.layer.{i}.{name}.{end}": array.copy() for name, array in named.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": VOCABULARY,
        "hidden_size": case.E,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.H,
        "intermediate_size": case.F,
        "hidden_act": case.activation,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": EPS,
        "pad_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(directory / "tokenizer.json"))


def check_model(case: Case, directory: Path) -> None:
    """The work of a case is counted from its row: a model of other sizes would make its figures wrong.

    Raises
    ------
    ValueError
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    expected = {
        "vocab_size": VOCABULARY,
        "hidden_size": case.E,
        "num_attention_heads": case.H,
        "intermediate_size": case.F,
        "num_hidden_layers": case.layers,
        "hidden_act": case.activation,
    }
    given = {name: config.get(name) for name in expected}
    if given != expected:
        raise ValueError(f"{case.name}: config.json of {directory} must have {expected}; got {given}")


def make_tokens(case: Case, rng: np.random.Generator) -> list[Array]:
    """The token ids of each text."""
    return [rng.integers(0, VOCABULARY, length) for length in case.lengths.tolist()]


def layer_oracle(case: Case, x: Array, state: dict[str, Array]) -> NDArray[np.float64]:
    """[B, T, E] by the textbook."""
    return reference.encoder_layer(x, state, case.H, activation=case.activation, is_causal=case.causal)


def sentence_oracle(case: Case, tokens: list[Array], directory: Path) -> NDArray[np.float64]:
    """[B, E] by the textbook, each text by itself."""
    from safetensors.numpy import load_file

    tensors = load_file(directory / "model.safetensors")
    eps = json.loads((directory / "config.json").read_text(encoding="utf-8"))["layer_norm_eps"]
    state = {f"layers.{i}.{name}": array for i in range(case.layers) for name, array in bert_layer(tensors, i).items()}
    tables = [tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    words, positions, types = (table.astype(np.float64) for table in tables)
    norm = [tensors[f"embeddings.LayerNorm.{end}"] for end in ("weight", "bias")]
    embeddings = np.empty((case.B, case.E))
    with one_blas_thread():
        for i, text in enumerate(tokens):
            x = reference.layer_norm(words[text] + positions[: len(text)] + types[0], *norm, eps=eps)
            rows = reference.encoder(x[None], state, case.H, activation=case.activation, eps=eps)
            mean = rows[0].mean(axis=0)
            embeddings[i] = mean / np.linalg.norm(mean)
    return embeddings


def bert_layer(tensors: dict[str, Array], i: int) -> dict[str, Array]:
    """Layer `i` of a BERT in the names of `torch.nn.TransformerEncoderLayer`."""
    state = {}
    for end in ("weight", "bias"):
        parts = [tensors[f"encoder.layer.{i}.{name}.{end}"] for name in PROJECTIONS]
        state[f"self_attn.in_proj_{end}"] = np.concatenate(parts)
        for name, torch_name in BERT_NAMES.items():
            state[f"{torch_name}.{end}"] = tensors[f"encoder.layer.{i}.{name}.{end}"]
    return state


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy's BLAS spins while it waits for its threads: between small products that takes longer than they do."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return nullcontext()
    limit: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limit


def padded_texts(texts: list[Array]) -> tuple[Array, Array]:
    """Token ids and mask, [B, longest] each; what is behind the end of a text is masked with 0."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return ids, mask
