"""The trainer of sentence-transformers with attention of this library: the losses that it has with torch's.

Skipped without that package and datasets, which its trainer needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("sentence_transformers", minversion="6")
datasets = pytest.importorskip("datasets")
pytest.importorskip("accelerate")

import numpy as np  # noqa: E402
import tiny_bert  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: E402

from mha_native.interop.torch import accelerate  # noqa: E402
from mha_native.interop.transformers import register  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, BATCH = 50, 4


def _pairs() -> Any:
    """Texts of 3 to 15 words, and the same in another order."""
    rng = np.random.default_rng(0)
    texts = [rng.choice(tiny_bert.WORDS[4:], rng.integers(3, 16)) for _ in range(STEPS * BATCH)]
    return datasets.Dataset.from_dict(
        {"anchor": [" ".join(x) for x in texts], "positive": [" ".join(rng.permutation(x)) for x in texts]}
    )


def _losses(directory: Path, how: str) -> list[float]:
    first: Any = Transformer(str(directory / "model"))
    transformer, first.tokenizer.pad_token = first.auto_model, "[PAD]"
    model: Any = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension(), "mean")], device="cpu")
    if how == "register":
        register()
        transformer.set_attn_implementation("mha_native")
    elif how == "accelerate":
        assert len(accelerate(model, training=True).replaced) == 2
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(directory / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    loss: Any = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=_pairs(), loss=loss)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_losses_are_those_of_torch(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path / "model", tiny_bert.config(attention_probs_dropout_prob=0.0))
    expected = _losses(tmp_path, "torch")
    assert len(expected) == STEPS
    assert sum(expected[-10:]) < 0.9 * sum(expected[:10])
    for how in ("register", "accelerate"):
        assert _losses(tmp_path, how) == pytest.approx(expected, rel=2e-3), how
