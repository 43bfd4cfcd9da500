"""`CrossEncoder` over language models such as Qwen3-Reranker: the scores of sentence-transformers.

Skipped without sentence-transformers, transformers and torch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jinja2")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
tokenizers = pytest.importorskip("tokenizers")
oracle = pytest.importorskip("sentence_transformers", minversion="6.2")

from checkpoints import byte_level_bpe  # noqa: E402

from mha_native.sentence_transformers import CrossEncoder  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CONTENT = "{{ messages | selectattr('role', 'eq', '%s') | map(attribute='content') | first | default('Find.') }}"
TEMPLATE = (
    f"<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n<Instruct>: {_CONTENT % 'system'}\n"
    f"<Query>: {_CONTENT % 'query'}\n<Document>: {_CONTENT % 'document'}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
PAIRS = [("a query", "the document"), ("x", "y " * 300), ("q " * 400, "yes"), ("", "no <|im_end|>")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 in the files of transformers."""
    library = byte_level_bpe(SPECIAL, [("y", "e"), ("ye", "s"), ("n", "o"), ("t", "h"), ("th", "e")])
    library.add_special_tokens(SPECIAL)
    directory = tmp_path_factory.mktemp("plain")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, eos_token=SPECIAL[2], pad_token=SPECIAL[0], padding_side="left",
        model_max_length=400, chat_template=TEMPLATE,
    ).save_pretrained(directory)  # fmt: skip
    config = transformers.Qwen3Config(
        vocab_size=library.get_vocab_size(), hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=40, max_position_embeddings=512, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.3 * noise if parameter.dim() == 1 else noise / np.sqrt(24))
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def saved(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as sentence-transformers saves it, with a prompt for the answer, and other answers."""
    directory = tmp_path_factory.mktemp("saved")
    oracle.CrossEncoder(str(plain), device="cpu").save_pretrained(str(directory))
    _change(
        directory / "sentence_bert_config.json", processing_kwargs={"chat_template": {"add_generation_prompt": True}}
    )
    _change(directory / "1_LogitScore" / "config.json", true_token_id=20, false_token_id=None)
    _change(
        directory / "config_sentence_transformers.json", prompts={"web": "Find the page."}, default_prompt_name="web"
    )
    return directory


def _change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize("layout", ["plain", "saved"])
def test_scores(layout: str, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(layout)
    ours, theirs = CrossEncoder(directory), oracle.CrossEncoder(str(directory), device="cpu")
    assert (ours.max_seq_length, ours.num_labels) == (theirs.max_seq_length, 1) == (400, 1)

    def assert_same(**options: Any) -> None:
        actual = ours.predict(PAIRS, **options)
        np.testing.assert_allclose(actual, theirs.predict(PAIRS, **options), rtol=0, atol=2e-6)
        for pair, score in zip(PAIRS, actual, strict=True):  # alone
            assert ours.predict(pair, **options) == score

    assert_same()
    assert_same(prompt="Find the document.", activation_fn=torch.nn.Identity())
    ranking = [entry["corpus_id"] for entry in ours.rank("a query", [text for _, text in PAIRS])]
    assert ranking == [entry["corpus_id"] for entry in theirs.rank("a query", [text for _, text in PAIRS])]
    ours.max_seq_length = theirs.max_seq_length = 120
    assert_same()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("1_LogitScore/config.json", {"true_token_id": 10**6}, "tokens must be from 0"),
    ("1_LogitScore/config.json", {"module_input_name": "scores"}, "module_input_name"),
    ("1_LogitScore/config.json", {"temperature": 2.0}, "temperature"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs"),
    ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
    ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "transformer_task"),
    (
        "sentence_bert_config.json",
        {
            "modality_config": {
                name: {"method": "forward", "method_output_name": "logits"} for name in ("text", "message")
            }
        },
        "modality_config",
    ),
    ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side"),
    ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config"),
]


@pytest.mark.parametrize(("name", "entries", "words"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_unsupported_entries(name: str, entries: dict[str, Any], words: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    _change(tmp_path / "model" / name, **entries)
    with pytest.raises(ValueError, match=words):
        CrossEncoder(tmp_path / "model")


def test_templates_without_pairs(plain: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(plain, tmp_path / "model")
    for template, words in (
        ("{{ messages[0]['content'] }}", "roles query and document"),
        ("{{ messages[0].content[0].text }}", "in parts"),
    ):
        (directory / "chat_template.jinja").write_text(template)
        with pytest.raises(ValueError, match=words):
            CrossEncoder(directory)
    with pytest.raises(TypeError, match="pairs of texts"):
        CrossEncoder(plain).predict("a text")
