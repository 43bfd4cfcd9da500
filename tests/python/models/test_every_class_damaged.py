"""Every class that opens the files of a model, with damaged files: refused by one sentence, or right, and soon.

`damaged_models.py` opens each in a process with limits of time and memory. What it computes for a folder is compared
with transformers and sentence-transformers, where these open it; without them only crashes and messages are tested.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damaged_models
import numpy as np
import pytest
from damaged_models import CLASSES, IMAGES, LETTERS, PAIRS, TEXTS, TOKENS, Outcome
from matrix import matrix, nightly

from mha_native.models import SentenceEncoder

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

COUNTS = nightly((60, 4000), quick=(60,))

# Messages about a text, for files that are valid: a tokenizer or a template can give it too many tokens, or none.
OF_TEXTS = (
    "no more tokens than the model has positions", ": the tokenizer failed: ", "must have a token", "surrogate",
    "tokens must be from 0 to",
)  # fmt: skip

BOUND = 3e-5  # of the largest number


@matrix(count=COUNTS)
@pytest.mark.parametrize("name", CLASSES)
def test_damaged_files(name: str, count: int, tmp_path: Path) -> None:
    ended, refused, loaded = [], 0, []
    for outcome in damaged_models.outcomes(name, tmp_path, count):
        if not isinstance(outcome, Outcome):
            ended.append(outcome)
            continue
        if outcome.results is not None:
            loaded.append(outcome)
            continue
        refused += 1
        message = outcome.message
        assert not outcome.error, outcome
        assert len(message.splitlines()) == 1, outcome
        assert len(message) < 2000, outcome
        names_file = str(tmp_path) in message or "config.json" in message
        assert names_file or any(words in message for words in OF_TEXTS), outcome
    assert not ended
    assert refused > count // 2
    assert len(loaded) > count // 20
    oracle = _oracle(name)
    if oracle is not None:
        for outcome in loaded:
            _assert_right(name, tmp_path, outcome, oracle)


def _assert_right(name: str, folder: Path, outcome: Outcome, oracle: Callable[[Path], list[Any]]) -> None:
    home = damaged_models.home_of(name, folder, outcome.seed)
    path, raw = damaged_models.damage(name, folder, outcome.seed)
    try:
        expected = oracle(home)
    except Exception:  # it refuses the file, for which there is then no right result
        return
    finally:
        path.write_bytes(raw)
    for actual, theirs in zip(outcome.results or [], expected, strict=True):
        if isinstance(actual, np.ndarray) and theirs is not None:
            assert actual.shape == np.shape(theirs), outcome
            bound = BOUND * max(1, np.abs(theirs).max(initial=0))
            np.testing.assert_allclose(actual, theirs, rtol=0, atol=bound, err_msg=str(outcome.seed))
        elif theirs is not None:
            assert actual == theirs, outcome


def _oracle(name: str) -> Callable[[Path], list[Any]] | None:
    """Return what gives the results of a class for a folder, each of them or None; None without its library."""
    try:
        import sentence_transformers
        import torch
        import transformers
    except ImportError:
        return None
    float32: Any = {"dtype": torch.float32}

    def embeddings(home: Path) -> list[Any]:
        return [sentence_transformers.SentenceTransformer(str(home), device="cpu", model_kwargs=float32).encode(TEXTS)]

    def sparse(home: Path) -> list[Any]:
        model = sentence_transformers.SparseEncoder(str(home), device="cpu", model_kwargs=float32)
        if any(type(module).__name__ == "SparseAutoEncoder" for module in model):
            raise ValueError  # with random weights, which it adds to files that do not name their model_type
        found = model.encode_query(TEXTS), model.encode_document(TEXTS)
        return [each.to_dense().numpy() for each in found]

    def vectors(home: Path) -> list[Any]:
        model = sentence_transformers.MultiVectorEncoder(str(home), device="cpu", model_kwargs=float32)
        return [
            np.concatenate(encode(TEXTS, convert_to_numpy=True))
            for encode in (model.encode_query, model.encode_document)
        ]

    def pairs(home: Path) -> list[Any]:
        return [sentence_transformers.CrossEncoder(str(home), device="cpu", model_kwargs=float32).predict(PAIRS)]

    def scores(home: Path) -> list[Any]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(home)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(home, **float32).eval()
        unused = 2 if model.config.model_type == "roberta" else 0  # positions
        length = min(tokenizer.model_max_length, model.config.max_position_embeddings - unused)
        functions = {"regression": lambda x: x, "multi_label_classification": torch.sigmoid}
        usual = torch.sigmoid if model.config.num_labels == 1 else lambda x: x.softmax(-1)
        rows = []
        for given in [*TEXTS, *PAIRS]:
            parts = (given,) if isinstance(given, str) else given
            inputs = tokenizer(*parts, truncation=True, max_length=length, return_tensors="pt")
            with torch.no_grad():
                rows.append(functions.get(model.config.problem_type, usual)(model(**inputs).logits[0]).numpy())
        return [np.stack(rows), [model.config.id2label[i] for i in range(model.config.num_labels)]]

    def entities(home: Path) -> list[Any]:
        pipe = transformers.pipeline("token-classification", str(home), aggregation_strategy="none", ignore_labels=[])
        if pipe.tokenizer.model_max_length < 15:  # longer texts are cut there, and read in windows here
            raise ValueError
        found = [pipe(text) if text else [] for text in TEXTS[:3]]
        words = [[(word["entity"], word["start"], word["end"], word["index"]) for word in text] for text in found]
        return [np.array([word["score"] for text in found for word in text]), words]

    def logits(home: Path) -> list[Any]:
        options = float32 | {"attn_implementation": "eager"}
        model = transformers.AutoModelForCausalLM.from_pretrained(home, **options).eval()
        if any(weights.abs().max() > 1e15 for weights in model.parameters()):
            raise OverflowError  # of the mean square in its norms, which are always in float32
        # AutoTokenizer takes Qwen2Tokenizer for any qwen2, whatever class its files name.
        kind = (
            transformers.PreTrainedTokenizerFast if model.config.model_type == "qwen2" else transformers.AutoTokenizer
        )
        tokenizer = kind.from_pretrained(home)
        with torch.no_grad():
            rows = model(torch.tensor([TOKENS])).logits[0].numpy()
        return [rows, np.array(tokenizer("the cat").input_ids), None, None]

    def translations(home: Path) -> list[Any]:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(home, **float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(home)
        source = torch.tensor([TOKENS])
        with torch.no_grad():
            rows = model(input_ids=source, decoder_input_ids=torch.tensor([[3, 5, 6]])).logits[0].numpy()
        return [rows, np.array(tokenizer("the cat").input_ids), None]

    def heard(home: Path) -> list[Any]:
        options = float32 | {"attn_implementation": "eager"}
        model = transformers.WhisperForConditionalGeneration.from_pretrained(home, **options).eval()
        shape = (1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
        features = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        with torch.no_grad():
            found = model(input_features=torch.from_numpy(features), decoder_input_ids=torch.tensor([[3, 8, 9]]))
        return [found.encoder_last_hidden_state.numpy(), found.logits[0].numpy(), None]

    def seen(home: Path) -> list[Any]:
        model = transformers.AutoModel.from_pretrained(home, **float32).eval()
        with torch.no_grad():
            found = getattr(model, "get_image_features", model)(_pixels(home))
        return [found.pooler_output.numpy(), found.last_hidden_state.numpy()]

    def labelled(home: Path) -> list[Any]:
        model = transformers.AutoModelForImageClassification.from_pretrained(home, **float32).eval()
        functions = {"regression": lambda x: x, "multi_label_classification": torch.sigmoid}
        usual = torch.sigmoid if model.config.num_labels == 1 else lambda x: x.softmax(-1)
        with torch.no_grad():
            scores = functions.get(model.config.problem_type, usual)(model(_pixels(home)).logits)
        return [scores.numpy(), [model.config.id2label[i] for i in range(model.config.num_labels)]]

    def compared(home: Path) -> list[Any]:
        model = transformers.AutoModel.from_pretrained(home, **float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(home)
        options = {"padding": "max_length" if model.config.model_type == "siglip" else True, "truncation": True}
        length = min(tokenizer.model_max_length, model.config.text_config.max_position_embeddings)
        inputs = tokenizer(LETTERS, return_tensors="pt", max_length=length, **options)
        with torch.no_grad():
            texts, images = model.get_text_features(**inputs), model.get_image_features(_pixels(home))
            logits = model(**inputs, pixel_values=_pixels(home)).logits_per_image
        return [texts.pooler_output.numpy(), images.pooler_output.numpy(), logits.numpy()]

    def _pixels(home: Path) -> Any:
        processor = transformers.AutoImageProcessor.from_pretrained(home, backend="pil")
        return processor(IMAGES, return_tensors="pt").pixel_values

    return {
        "SentenceEncoder": embeddings,
        "SentenceEncoder of words": embeddings,
        "SentenceTransformer": embeddings,
        "SparseEncoder": sparse,
        "MultiVectorEncoder": vectors,
        "CrossEncoder": pairs,
        "TextClassifier": scores,
        "TokenClassifier": entities,
        "CausalLM": logits,
        "Seq2SeqLM": translations,
        "ImageEncoder": seen,
        "ImageClassifier": labelled,
        "ImageTextEncoder": compared,
        "SpeechSeq2Seq": heard,
    }.get(name)


WITHOUT_COUNTS = ("SentenceEncoder of words", "CTranslate2")  # static models, and files that count tensors


@pytest.mark.parametrize("name", [name for name in CLASSES if not any(part in name for part in WITHOUT_COUNTS)])
def test_more_layers_than_any_model_has(name: str, tmp_path: Path) -> None:
    """Neither a count of layers without bound nor the largest one that is read takes time."""
    names = ("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_layers",
             "num_decoder_layers", "block_count")  # fmt: skip
    found = damaged_models.with_count(name, tmp_path, names, ((1 << 63) - 1, 4096))
    assert len(found) >= 2 * len(CLASSES[name].families)
    for outcome in found:
        assert outcome.results is None, outcome
        assert not outcome.error, outcome
        assert any(words in outcome.message for words in (*names, "layer", "blk.", "block"))


def test_a_class_of_tokenizer_that_is_not_named(tmp_path: Path) -> None:
    """transformers then takes the class of the family, which builds a tokenizer of another kind from tokenizer.json."""
    for family in CLASSES["SentenceEncoder"].families:
        home = tmp_path / family
        CLASSES["SentenceEncoder"].write(home, family)
        assert SentenceEncoder.from_pretrained(home).embed_dim == 7
        shutil.move(home / "tokenizer_config.json", home / "other.json")
        if family == "modernbert":  # which has no class of its own
            SentenceEncoder.from_pretrained(home)
            continue
        with pytest.raises(ValueError, match=r"tokenizer\.json: model must be .*; got WordLevel"):
            SentenceEncoder.from_pretrained(home)
