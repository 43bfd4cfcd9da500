"""The model of a case of sentences: a directory that all contenders load, given by the user or written here."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mha_native_bench.cases.case import QUERY_TOKENS, Array, Case
from mha_native_bench.cases.clip_text import POSITIONS as CLIP_POSITIONS
from mha_native_bench.cases.clip_text import clip_config, clip_preprocessor, clip_tensors
from mha_native_bench.cases.image_model import write_vit
from mha_native_bench.cases.modernbert import POSITIONS as MODERNBERT_POSITIONS
from mha_native_bench.cases.modernbert import modernbert_config, modernbert_tensors
from mha_native_bench.cases.weights import LayerNames, encoder_layer_state

VOCABULARY, POSITIONS = 30522, 512  # of BERT, uncased
EPS = 1e-12  # of BERT's norms

BERT = LayerNames(
    "encoder.layer.{}.",
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    {
        "attention.output.dense": "self_attn.out_proj",
        "intermediate.dense": "linear1",
        "output.dense": "linear2",
        "attention.output.LayerNorm": "norm1",
        "output.LayerNorm": "norm2",
    },
)


class Models:
    """Directories of models: the given one, or else one with random weights for each size, written on first use.

    A context manager, which removes what was written.
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
        """Where the model of `case` is; None for a case that needs no model."""
        if case.kind not in ("sentences", "images"):
            return None
        # The given one is a BERT without a head.
        fits = case.kind == "sentences" and not (case.pairs or case.sparse or case.family)
        if self._given is not None and fits:
            check_model(case, self._given)
            return self._given
        if self._written is None:
            self._written = TemporaryDirectory()
        kind = "pairs" if case.pairs else "sparse" if case.sparse else case.family or case.kind
        sizes = f"{case.layers} {case.E} {case.H} {case.F} {case.activation} {kind}"
        directory = Path(self._written.name) / sizes
        if not directory.exists():
            directory.mkdir()
            (write_vit if case.kind == "images" else write_model)(case, directory)
        return directory


def write_model(case: Case, directory: Path) -> None:
    """Writes a model of the sizes of `case` with random weights; times do not depend on them."""
    from safetensors.numpy import save_file

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": case.E,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.H,
        "pad_token_id": 0,
    }
    if case.family == "clip_text":
        tensors, config, positions = clip_tensors(case, VOCABULARY), clip_config(case, sizes), CLIP_POSITIONS
        (directory / "preprocessor_config.json").write_text(json.dumps(clip_preprocessor()), encoding="utf-8")
    elif case.family:
        tensors, config = modernbert_tensors(case, VOCABULARY), sizes | modernbert_config(case)
        positions = MODERNBERT_POSITIONS
    else:
        tensors, config, positions = bert_tensors(case), sizes | bert_config(case), POSITIONS
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(directory, positions)


def bert_tensors(case: Case) -> dict[str, Array]:
    """Random weights as transformers saves them."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        values: Array = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        return values

    tensors = {
        "embeddings.word_embeddings.weight": normal(VOCABULARY, case.E),
        "embeddings.position_embeddings.weight": normal(POSITIONS, case.E),
        "embeddings.token_type_embeddings.weight": normal(2, case.E),
        "embeddings.LayerNorm.weight": 1 + normal(case.E),
        "embeddings.LayerNorm.bias": normal(case.E),
    }
    for i in range(case.layers):
        tensors |= BERT.to_files(encoder_layer_state(case, rng), i)
    if case.pairs:
        tensors |= {"pooler.dense.weight": normal(case.E, case.E), "pooler.dense.bias": normal(case.E)}
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}  # as of any model with a head
        tensors |= {"classifier.weight": normal(1, case.E), "classifier.bias": normal(1)}
    if case.sparse:
        head = "cls.predictions."
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"{head}transform.dense.weight": normal(case.E, case.E)}
        tensors |= {f"{head}transform.dense.bias": normal(case.E), f"{head}bias": normal(VOCABULARY)}
        tensors |= {f"{head}transform.LayerNorm.weight": 1 + normal(case.E)}
        tensors |= {f"{head}transform.LayerNorm.bias": normal(case.E)}
    return tensors


def bert_config(case: Case) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": [class_of(case)],
        "id2label": {"0": "LABEL_0"},
        "intermediate_size": case.F,
        "hidden_act": case.activation,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": EPS,
    }


def class_of(case: Case) -> str:
    """The class of the model in transformers."""
    if case.sparse:
        return "BertForMaskedLM"
    return "BertForSequenceClassification" if case.pairs else "BertModel"


def write_tokenizer(directory: Path, positions: int) -> None:
    """Writes a tokenizer that splits words as BERT does, all of which are in its vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    letters = map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    vocabulary = {word: i for i, word in enumerate([*special, *itertools.islice(letters, VOCABULARY - len(special))])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "[PAD]",
        "model_max_length": positions,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def texts_of_lengths(
    directory: Path, lengths: list[int], rng: np.random.Generator
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Texts of random words, each one token of the model in `directory`; and their tokens, with two special ones.

    Raises
    ------
    ValueError
        If the model reads fewer tokens.
    """
    tokenizer, words = _tokenizer_and_words(directory)
    texts = tuple(" ".join(rng.choice(words, length - 2)) for length in lengths)
    tokens = tuple(np.array(encoding.ids) for encoding in tokenizer.encode_batch(list(texts)))
    if [len(ids) for ids in tokens] != lengths:
        raise ValueError(f"{directory}: texts must have up to {max(lengths)} tokens, with two special ones")
    return texts, tokens


def pairs_of_lengths(
    directory: Path, lengths: list[int], rng: np.random.Generator
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """A query and then its documents, of random words; and the tokens of each pair, with three special ones."""
    tokenizer, words = _tokenizer_and_words(directory)
    query = " ".join(rng.choice(words, QUERY_TOKENS - 3))
    documents = [" ".join(rng.choice(words, length - QUERY_TOKENS)) for length in lengths]
    encodings = tokenizer.encode_batch([(query, document) for document in documents])
    return (query, *documents), tuple(np.array(encoding.ids) for encoding in encodings)


def _tokenizer_and_words(directory: Path) -> tuple[Any, list[str]]:
    """The tokenizer of a model, and words that are one token each."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    return tokenizer, sorted(word for word in tokenizer.get_vocab() if re.fullmatch("[a-z]{3,}", word))


def check_model(case: Case, directory: Path) -> None:
    """Refuses a model of other sizes than the row of the case, from which its work is counted.

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
