"""Qwen 2 with the last token's vector, with every kind of tokenizer: as sentence-transformers, or refused by name.

Skipped without that library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_tokenizers
import tokenizers
from model_files import assert_not_loaded
from tolerance import EMBEDDING_BOUND

from mha_native.models import SentenceEncoder

oracle = pytest.importorskip("sentence_transformers", minversion="6.2")
transformers = pytest.importorskip("transformers", minversion="5")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ["the dog", "a", "the dog the dog the a b", "dog 12 the\n a", "a" * 30]


def _save(directory: Path, library: Any, settings: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
        intermediate_size=40, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.Qwen2Model(config).eval().save_pretrained(directory)
    files = {
        "tokenizer.json": json.loads(library.to_str()),
        "tokenizer_config.json": settings,
        "modules.json": tiny_bert.modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {"word_embedding_dimension": 24, "pooling_mode_lasttoken": True},
    }
    for name, value in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(value), encoding="utf-8")
    return directory


def _of_qwen(adds_end: bool) -> Any:
    library = tiny_tokenizers.byte_level()
    library.normalizer = tokenizers.normalizers.NFC()
    library.pre_tokenizer = tiny_tokenizers.qwen2_pre_tokenizer()
    ends = [("</s>", 2)] if adds_end else []
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>" if adds_end else "$A", special_tokens=ends
    )
    return library


KINDS = {"of Qwen": lambda: _of_qwen(False), "with an end": lambda: _of_qwen(True), "words": tiny_bert.tokenizer,
         "bytes": tiny_tokenizers.byte_level}  # fmt: skip
WHOLE_FILE = "PreTrainedTokenizerFast"


@pytest.mark.parametrize("name", [None, "Qwen2Tokenizer", WHOLE_FILE])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_qwen2(kind: str, side: str, name: str | None, tmp_path: Path) -> None:
    settings = {"padding_side": side, "pad_token": "[PAD]" if kind == "words" else "<pad>"}
    library = KINDS[kind]()
    library.add_special_tokens([settings["pad_token"]])
    _save(tmp_path, library, settings | ({} if name is None else {"tokenizer_class": name}))
    if kind in ("words", "bytes") and name != WHOLE_FILE:
        part = {"words": "model must be BPE", "bytes": "pre_tokenizer must be Split and ByteLevel"}[kind]
        assert_not_loaded(tmp_path, f"tokenizer.json: {part}, since Qwen2Tokenizer of transformers builds it so")
        return
    theirs = oracle.SentenceTransformer(str(tmp_path), device="cpu")
    if name == WHOLE_FILE:  # transformers takes Qwen2Tokenizer for any qwen2, whatever class its files name
        theirs[0].processor = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    np.testing.assert_allclose(
        SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), theirs.encode(TEXTS), rtol=0, atol=EMBEDDING_BOUND
    )


def test_the_regular_expression_of_qwen2(tmp_path: Path) -> None:
    library, kinds = _of_qwen(False), tokenizers.pre_tokenizers
    split = kinds.Split(tokenizers.Regex(r"\\s+"), "isolated")
    library.pre_tokenizer = kinds.Sequence([split, kinds.ByteLevel(add_prefix_space=False, use_regex=False)])
    assert_not_loaded(_save(tmp_path, library, {}), "tokenizer.json: pattern of Split must be")
