"""Encoder-decoders: logits against an oracle in float64, and what searches find against all texts that there are."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import seq2seq_oracle
import tiny_generators
from tiny_generators import END, LIKE_T5, POSITIONS, SETTINGS, START
from tiny_generators import SEQ2SEQ as FAMILIES
from tiny_generators import SEQ2SEQ_VOCABULARY as VOCABULARY

from mha_native.models import Seq2SeqLM
from mha_native.models.generation import engine

Array = np.ndarray[Any, Any]

TEXT = [2, 9, 30, 11, 4, 25, 25, 3]
TARGET = [START, 5, 31, 5, 17, 8, 0]
# A head of its own, by which the next token is not mostly the last one again.
OWN_HEAD = {"tie_word_embeddings": False}

TEXTS = [[2, 9, 3], TEXT, [7], [2, *range(4, 30), 3]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seq2SeqLM]:
    folder = tmp_path_factory.mktemp("models")
    written = (tiny_generators.write(folder / name, tiny_generators.config(name, **OWN_HEAD)) for name in FAMILIES)
    return {path.name: Seq2SeqLM.from_pretrained(path) for path in written}


def logits_of(model: Seq2SeqLM, target: list[int]) -> Array:
    return model.logits(TEXT, target).astype(np.float64)


def oracle(settings: dict[str, Any], text: list[int], target: list[int]) -> Array:
    return seq2seq_oracle.logits(settings, tiny_generators.tensors(settings), text, target)


@pytest.mark.parametrize(("model_type", "changes"), SETTINGS)
def test_logits(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type, **changes)
    directory = tiny_generators.write(tmp_path, settings)
    models = [
        (Seq2SeqLM.from_pretrained(directory), 1e-5),
        (Seq2SeqLM.from_pretrained(directory, dtype="float64"), 1e-12),
    ]
    # The long ones reach beyond all distances that have a bias of their own.
    for text, target in ((TEXT, TARGET), (TEXTS[3], [START, *range(5, 35)])):
        expected = oracle(settings, text, target)
        if changes:
            usual = oracle(tiny_generators.config(model_type), text, target)
            assert np.abs(expected - usual).max() > 0.001, "the entries have no effect"
        for model, bound in models:
            actual = model.logits(text, target)
            assert actual.shape == (len(target), VOCABULARY)
            assert np.abs(actual - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize(("kind", "weight_dtype", "bound"), [
    ("bfloat16", None, 0.15), ("float16", None, 0.02), ("float32", "bfloat16", 0.05), ("float32", "int8", 0.1),
])  # fmt: skip
def test_fewer_bits(
    models: dict[str, Seq2SeqLM], model_type: str, kind: str, weight_dtype: str | None, bound: float, tmp_path: Path
) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config(model_type, **OWN_HEAD))
    model = Seq2SeqLM.from_pretrained(directory, dtype=kind, weight_dtype=weight_dtype)  # type: ignore[arg-type]
    assert model.weight_dtype == (weight_dtype or kind)
    actual, exact = model.logits(TEXT, TARGET), models[model_type].logits(TEXT, TARGET)
    assert actual.dtype == np.float32
    assert 0 < np.abs(actual - exact).max() <= bound * np.abs(exact).max()
    found = model.generate_tokens(TEXTS, max_new_tokens=5, num_beams=2)
    for text, together in zip(TEXTS, found, strict=True):
        (alone,) = model.generate_tokens([text], max_new_tokens=5, num_beams=2)
        assert alone.tokens.tolist() == together.tokens.tolist()


@pytest.mark.parametrize("first_room", [1, 3, 256])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_are_those_of_the_whole_text(
    models: dict[str, Seq2SeqLM], model_type: str, first_room: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine, "FIRST_ROOM", first_room)
    model, read = models[model_type], [START]
    while len(read) < 16 and read[-1] != END:
        read.append(int(logits_of(model, read)[-1].argmax()))
    assert len(set(read)) > 2, "tokens hardly differ"
    (found,) = model.generate_tokens([TEXT], max_new_tokens=15)
    assert found.tokens.dtype == np.int64
    assert found.tokens.tolist() == read[1:]


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -2.0, 3.0])
def test_many_beams_find_the_best_of_all_texts(
    models: dict[str, Seq2SeqLM], model_type: str, length_penalty: float
) -> None:
    """Of two tokens, with as many beams as there are tokens."""
    model = models[model_type]

    def log_probabilities(read: list[int]) -> Array:
        last = logits_of(model, read)[-1]
        shifted = last - last.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))

    first = log_probabilities([START])
    scores = {(END,): first[END]}
    for token in set(range(VOCABULARY)) - {END}:
        second = log_probabilities([START, token])
        scores |= {(token, last): (first[token] + second[last]) / 2**length_penalty for last in range(VOCABULARY)}
    best = max(scores, key=lambda text: scores[text])
    (found,) = model.generate_tokens(
        [TEXT], max_new_tokens=2, num_beams=VOCABULARY, length_penalty=length_penalty, early_stopping="never"
    )
    assert tuple(found.tokens) == best
    assert found.score == pytest.approx(scores[best], abs=1e-4)


RULES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {"num_beams": 3, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "early_stopping": True, "min_new_tokens": 4},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0},
]


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("rules", RULES)
def test_a_text_does_not_depend_on_those_beside_it(
    models: dict[str, Seq2SeqLM], model_type: str, rules: dict[str, Any]
) -> None:
    found = models[model_type].generate_tokens(TEXTS * 12, max_new_tokens=8, **rules)
    assert len(found) == 12 * len(TEXTS)
    for i, (text, together) in enumerate(zip(TEXTS * 12, found, strict=True)):
        if i < len(TEXTS):
            (alone,) = models[model_type].generate_tokens([text], max_new_tokens=8, num_threads=1, **rules)
        assert found[i % len(TEXTS)].tokens.tolist() == together.tokens.tolist()
        if i < len(TEXTS):
            assert alone.tokens.tolist() == together.tokens.tolist()
            assert_same_bits(np.array(alone.score), np.array(together.score), label=str(text))


def test_no_run_of_tokens_occurs_twice(models: dict[str, Seq2SeqLM]) -> None:
    model = models["bart"]
    for size, beams in itertools.product((1, 2, 3), (1, 3)):
        rules: dict[str, Any] = {"max_new_tokens": 30, "min_new_tokens": 30, "num_beams": beams}
        free, without = (model.generate_tokens([TEXT], no_repeat_ngram_size=n, **rules)[0].tokens for n in (0, size))
        runs = [tuple(run) for run in np.lib.stride_tricks.sliding_window_view([START, *without], size)]
        assert len(set(runs)) == len(runs) == 32 - size
        assert len({tuple(run) for run in np.lib.stride_tricks.sliding_window_view([START, *free], size)}) < 32 - size


def test_no_token_ends_a_text_early(models: dict[str, Seq2SeqLM], tmp_path: Path) -> None:
    free = models["bart"].generate_tokens([TEXT], max_new_tokens=12)[0].tokens.tolist()
    end = max(set(free), key=free.index)  # the one that comes last for the first time
    generation = {"decoder_start_token_id": START, "eos_token_id": [end, END]}
    settings = tiny_generators.config("bart", **OWN_HEAD)
    model = Seq2SeqLM.from_pretrained(
        tiny_generators.write(tmp_path, settings, files={"generation_config.json": generation})
    )
    ended = model.generate_tokens([TEXT], max_new_tokens=12)[0].tokens.tolist()
    assert ended == free[: free.index(end) + 1]
    for beams in (1, 3):
        for least in (3, 9, 12):
            tokens = model.generate_tokens([TEXT], max_new_tokens=12, min_new_tokens=least, num_beams=beams)[0].tokens
            assert not {end, END} & set(tokens[:least].tolist())
            assert len(tokens) == 12 or (len(tokens) > least and tokens[-1] in (end, END))


@pytest.mark.parametrize("beams", [1, 3])
def test_forced_tokens(models: dict[str, Seq2SeqLM], beams: int, tmp_path: Path) -> None:
    settings = tiny_generators.config("bart", **OWN_HEAD, forced_bos_token_id=11, forced_eos_token_id=7)
    model = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings))
    rules: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": beams}
    (found,) = model.generate_tokens([TEXT], **rules)
    assert (found.tokens[0], found.tokens[-1], len(found.tokens)) == (11, 7, 6)
    (other,) = model.generate_tokens([TEXT], forced_first_token=13, **rules)
    assert (other.tokens[0], other.tokens[-1]) == (13, 7)
    (free,) = models["bart"].generate_tokens([TEXT], forced_first_token=11, **rules)
    assert free.tokens[0] == 11
    assert free.tokens[-1] != 7
    (last,) = model.generate_tokens([TEXT], max_new_tokens=1, num_beams=beams)
    assert last.tokens.tolist() == [7]
    assert last.score == 0


def test_texts(models: dict[str, Seq2SeqLM]) -> None:
    model = models["t5"]
    texts = ["the dog", "", "a b c d e f g ! the cat", "the " * 60]
    written = model.generate(texts, max_new_tokens=6)
    assert len(written) == len(texts)
    assert all(special not in text for text in written for special in ("[CLS]", "[SEP]", "[PAD]"))
    assert [model.generate(text, max_new_tokens=6) for text in texts] == written
    assert model.generate([], max_new_tokens=6) == []
    assert model.generate_tokens([], max_new_tokens=6) == []
    bart = models["bart"]
    assert bart.max_length == POSITIONS
    assert bart.generate("the " * 60, max_new_tokens=6) == bart.generate("the " * (POSITIONS - 2), max_new_tokens=6)


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_copies(model_type: str, kind: str, tmp_path: Path) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config(model_type))
    model = Seq2SeqLM.from_pretrained(directory, dtype=kind)
    copy = pickle.loads(pickle.dumps(model))
    assert_same_bits(copy.logits(TEXT, TARGET), model.logits(TEXT, TARGET), label=model_type)
    assert copy.generate("the dog", max_new_tokens=5) == model.generate("the dog", max_new_tokens=5)
    assert repr(copy) == repr(model)
    assert f"max_length={None if model_type in LIKE_T5 else POSITIONS}" in repr(model)


def test_the_names_of_the_words(tmp_path: Path) -> None:
    """Files of other versions have the table by another name, or by several."""
    settings = tiny_generators.config("t5")
    weights = tiny_generators.tensors(settings)
    expected = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path / "a", settings, weights)).logits(TEXT, TARGET)
    words = weights["shared.weight"]
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    weights |= dict.fromkeys(names, words)
    actual = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path / "b", settings, weights)).logits(TEXT, TARGET)
    assert_same_bits(actual, expected, label="all names")
    del weights["shared.weight"]
    actual = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path / "c", settings, weights)).logits(TEXT, TARGET)
    assert_same_bits(actual, expected, label="without shared.weight")
    weights[names[1]] = words + 1
    with pytest.raises(ValueError, match=r"encoder\.embed_tokens\.weight and decoder\.embed_tokens\.weight must hold"):
        Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path / "d", settings, weights))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_tensor_that_is_missing_or_of_another_shape(model_type: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type)
    whole = tiny_generators.tensors(settings)
    first_layers = [name for name in whole if not any(f".{i}." in name.split("layer.")[0] for i in (1, 2))]
    for name in first_layers:
        if name == "final_logits_bias":  # which a model without a head does not have
            continue
        missing = {other: tensor for other, tensor in whole.items() if other != name}
        with pytest.raises(ValueError, match=r"Seq2SeqLM\.from_pretrained: .* missing: ") as error:
            Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings, missing))
        assert name.removeprefix("model.") in str(error.value)
        with pytest.raises(ValueError, match="of the wrong shape: "):
            Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings, whole | {name: whole[name][None]}))


@pytest.mark.parametrize("model_type", ["marian", "pegasus"])
def test_positions_of_a_file_are_read(model_type: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type)
    weights = tiny_generators.tensors(settings)
    for stack in ("encoder", "decoder"):
        table = np.random.default_rng(len(stack)).standard_normal((POSITIONS, 24)).astype(np.float32)
        weights[f"model.{stack}.embed_positions.weight"] = table
    model = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings, weights), dtype="float64")
    expected = seq2seq_oracle.logits(settings, weights, TEXT, TARGET)
    assert np.abs(model.logits(TEXT, TARGET) - expected).max() <= 1e-12 * np.abs(expected).max()


def test_a_model_with_pieces_takes_tokens(models: dict[str, Seq2SeqLM], tmp_path: Path) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config("marian", **OWN_HEAD))
    (directory / "tokenizer.json").unlink()
    (directory / "source.spm").write_bytes(b"pieces")
    model = pickle.loads(pickle.dumps(Seq2SeqLM.from_pretrained(directory)))
    (found,), (expected,) = (each.generate_tokens([TEXT], max_new_tokens=5) for each in (model, models["marian"]))
    assert found.tokens.tolist() == expected.tokens.tolist()
    for texts in ("the dog", ["the dog"]):
        with pytest.raises(ValueError, match=r"^Seq2SeqLM\.generate: texts need a tokenizer\.json, .*source\.spm"):
            model.generate(texts, max_new_tokens=3)
    directory = tiny_generators.write(tmp_path / "bart", tiny_generators.config("bart"))
    (directory / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        Seq2SeqLM.from_pretrained(directory)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_that_are_never_written(models: dict[str, Seq2SeqLM], num_beams: int, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"max_new_tokens": 8, "num_beams": num_beams}
    written = {token for found in models["bart"].generate_tokens(TEXTS, **rules) for token in found.tokens.tolist()}
    words = [[token] for token in written]  # END among them, which may end a text nevertheless
    settings = tiny_generators.config("bart", **OWN_HEAD, bad_words_ids=[*words, [END]])
    model = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings))
    for found in model.generate_tokens(TEXTS, **rules):
        assert len(found.tokens)
        assert not (set(found.tokens.tolist()) - {END}) & written


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bart", {"model_type": "bert"}, "model_type must be 'bart' or 'marian' or 'mbart' or 'pegasus' or 't5' or .*"),
    ("bart", {"activation_function": "swish"}, "activation_function must be 'relu' or 'gelu' or .*; got 'swish'"),
    ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder must be True; got False"),
    ("bart", {"d_model": 25}, "d_model must be a multiple of encoder_attention_heads; got 25 and 3"),
    ("bart", {"encoder_layers": 0}, "encoder_layers must be an integer of at least 1; got 0"),
    ("bart", {"decoder_layers": 10**9}, "decoder_layers must be at most 4096; got 1000000000"),
    ("bart", {"scale_embedding": "yes"}, "scale_embedding must be True or False; got 'yes'"),
    ("bart", {"eos_token_id": VOCABULARY}, "eos_token_id must be of tokens from 0 to 39; got 40"),
    ("bart", {"decoder_start_token_id": [2, 3]}, r"decoder_start_token_id must be a token; got \[2, 3\]"),
    ("bart", {"forced_bos_token_id": [2, 3]}, r"forced_bos_token_id must be one token; got \[2, 3\]"),
    ("bart", {"bad_words_ids": [[5, 6]]}, r"bad_words_ids must be lists of one token each; got \[\[5, 6\]\]"),
    ("bart", {"bad_words_ids": [[VOCABULARY]]}, "bad_words_ids must be lists of one token each; got"),
    ("bart", {"bad_words_ids": [5]}, "bad_words_ids must be lists of one token each; got"),
    ("bart", {"suppress_tokens": [5]}, "suppress_tokens must be absent, since this rule is unsupported; got"),
    ("bart", {"quantization_config": {"bits": 4}}, "quantization_config must be absent"),
    (
        "mbart",
        {"decoder_start_token_id": None, "bos_token_id": None},
        "decoder_start_token_id must be a token; got None",
    ),
    ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings must be True; got False"),
    ("marian", {"max_position_embeddings": 10**9}, "max_position_embeddings must be at most 16384; got 1000000000"),
    ("pegasus", {"activation_function": "swish"}, "activation_function must be 'relu' or 'gelu' or .*; got 'swish'"),
    ("t5", {"feed_forward_proj": "tanh"}, "feed_forward_proj must be 'relu' or 'gelu' or .*; got 'tanh'"),
    ("t5", {"is_gated_act": True}, "is_gated_act must be False; got True"),
    ("t5", {"dense_act_fn": "gelu_new"}, "dense_act_fn must be 'relu'; got 'gelu_new'"),
    ("t5", {"relative_attention_num_buckets": 6}, "relative_attention_num_buckets must be a multiple of 4; got 6"),
    (
        "t5",
        {"relative_attention_max_distance": 4},
        "relative_attention_max_distance must be more than half the .* got 4",
    ),
    ("m2m_100", {"pad_token_id": None}, "pad_token_id must be an integer of at least 0; got None"),
    ("m2m_100", {"pad_token_id": 2**40}, "pad_token_id must be less than vocab_size; got 1099511627776"),
    ("m2m_100", {"max_position_embeddings": 10**9}, "max_position_embeddings must be at most 16384; got 1000000000"),
    ("umt5", {"relative_attention_num_buckets": 6}, "relative_attention_num_buckets must be a multiple of 4; got 6"),
    ("t5", {"layer_norm_epsilon": -1.0}, r"layer_norm_epsilon must be a positive number; got -1\.0"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), REFUSED)
def test_what_config_json_must_not_say(model_type: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type)
    weights = tiny_generators.tensors(settings)
    directory = tiny_generators.write(tmp_path, settings | changes, weights)
    with pytest.raises(ValueError, match=rf"^Seq2SeqLM\.from_pretrained: .*config\.json: {message}"):
        Seq2SeqLM.from_pretrained(directory)


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1; got 0"),
    ({"max_new_tokens": 2.5}, TypeError, "max_new_tokens must be an integer"),
    ({"max_new_tokens": POSITIONS + 1}, ValueError, "max_new_tokens must be at most the positions of the model, 32"),
    ({"num_beams": 0}, ValueError, "num_beams must be at least 1; got 0"),
    ({"length_penalty": "long"}, TypeError, "length_penalty must be "),
    ({"length_penalty": float("nan")}, ValueError, "length_penalty must be "),
    ({"early_stopping": "always"}, ValueError, "early_stopping must be a bool or 'never'; got 'always'"),
    ({"early_stopping": 1.5}, TypeError, "early_stopping must be "),
    ({"no_repeat_ngram_size": -1}, ValueError, "no_repeat_ngram_size must be at least 0; got -1"),
    ({"min_new_tokens": 9}, ValueError, "min_new_tokens must be from 0 to 8; got 9"),
    ({"forced_first_token": VOCABULARY}, ValueError, "forced_first_token must be from 0 to 39; got 40"),
    ({"num_threads": 0}, ValueError, "num_threads must be at least 1; got 0"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), ARGUMENTS)
def test_arguments(models: dict[str, Seq2SeqLM], changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments = {"max_new_tokens": 8} | changes
    with pytest.raises(kind, match=rf"^Seq2SeqLM\.generate: {message}"):
        models["bart"].generate("the dog", **arguments)
    with pytest.raises(kind, match=rf"^Seq2SeqLM\.generate_tokens: {message}"):
        models["bart"].generate_tokens([TEXT], **arguments)


def test_tokens_and_texts_that_are_none(models: dict[str, Seq2SeqLM]) -> None:
    model = models["bart"]
    for text, message in (
        ([], "must have a token; got none at 1"),
        ([5] * 33, "must have no more tokens than the model has positions, 32; got 33 at 1"),
        ([4, VOCABULARY], "tokens must be from 0 to 39; got 4 to 40 at 1"),
        ([-1], "tokens must be from 0 to 39; got -1 to -1 at 1"),
    ):
        with pytest.raises(ValueError, match=rf"^Seq2SeqLM\.generate_tokens: texts:? {message}"):
            model.generate_tokens([TEXT, text], max_new_tokens=3)
    with pytest.raises(TypeError, match=r"^Seq2SeqLM\.generate: texts must be str; got int at 1"):
        model.generate(["a", 3], max_new_tokens=3)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^Seq2SeqLM\.generate: texts: text 0 holds half of a surrogate pair"):
        model.generate("\ud800", max_new_tokens=3)


def test_logits_without_a_largest(tmp_path: Path) -> None:
    settings = tiny_generators.config("t5")
    weights = tiny_generators.tensors(settings)
    weights["decoder.final_layer_norm.weight"][:] = 3e38
    model = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path, settings, weights))
    with pytest.raises(ValueError, match=r"^Seq2SeqLM\.generate_tokens: the largest logit is (nan|inf)"):
        model.generate_tokens([TEXT], max_new_tokens=3)
