"""What stands before a text, and which features are kept: config_sentence_transformers.json, and the arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pytest
import tiny_bert
from command_line import assert_refused, run
from model_files import assert_not_loaded
from tiny_bert import TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
NAME = "config_sentence_transformers.json"
PROMPTS = {"query": "the cat ", "document": "", "long": "dog " * 30, "empty": None}


def _model(directory: Path, *kinds: str, **values: Any) -> SentenceEncoder:
    files = {NAME: values, "modules.json": tiny_bert.modules("Transformer", "Pooling", *kinds)}
    return SentenceEncoder.from_pretrained(tiny_bert.write(directory, files=files))


def test_prompts_stand_before_each_text(tmp_path: Path) -> None:
    model = _model(tmp_path, prompts=PROMPTS)
    assert model.prompts == PROMPTS | {"empty": ""}
    plain = model.encode(TEXTS)
    prompted = model.encode([PROMPTS["query"] + text for text in TEXTS])
    assert np.any(plain != prompted)
    assert_same_bits(model.encode(TEXTS, prompt_name="query"), prompted)
    assert_same_bits(model.encode(TEXTS, prompt="the cat "), prompted)
    assert_same_bits(model.encode(TEXTS[1], prompt_name="query"), prompted[1])
    assert_same_bits(np.concatenate([*model.encode_batches(TEXTS, prompt_name="query")]), prompted)
    assert_same_bits(model.encode(TEXTS, prompt_name="empty"), plain)
    assert_same_bits(model.encode([], prompt_name="query"), plain[:0])


def test_the_default_prompt(tmp_path: Path) -> None:
    plain = _model(tmp_path / "plain")
    model = _model(tmp_path / "default", prompts=PROMPTS, default_prompt_name="query")
    assert_same_bits(model.encode(TEXTS), plain.encode(TEXTS, prompt=PROMPTS["query"]))
    assert_same_bits(model.encode(TEXTS, prompt=""), plain.encode(TEXTS))
    assert_same_bits(model.encode(TEXTS, prompt_name="document"), plain.encode(TEXTS))
    tokens = [tiny_bert.ids(text) for text in TEXTS]
    assert_same_bits(model.encode_tokens(tokens), plain.encode(TEXTS))


def test_every_model_has_prompts_for_queries_and_documents(tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))
    for name in ("query", "document"):
        assert_same_bits(model.encode(TEXTS, prompt_name=name), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_name": "passage"}, ValueError, "one of the model, query, document, long, empty; got 'passage'"),
        ({"prompt_name": "query", "prompt": "a"}, ValueError, "prompt and prompt_name exclude each other"),
        ({"prompt_name": 3}, TypeError, "prompt_name must be a str; got int"),
        ({"prompt": b"the"}, TypeError, "prompt must be a str; got bytes"),
        ({"prompt": "a\ud800"}, ValueError, "prompt holds half of a surrogate pair"),
        ({"truncate_dim": 0}, ValueError, "truncate_dim must be at least 1; got 0"),
        ({"truncate_dim": -1}, ValueError, "truncate_dim must be at least 1"),
        ({"truncate_dim": 2.5}, TypeError, "truncate_dim must be an integer; got 2.5"),
        ({"truncate_dim": True}, TypeError, "truncate_dim must be an integer"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    model = _model(tmp_path, prompts=PROMPTS)
    with pytest.raises(error, match=message):
        model.encode(TEXTS, **arguments)
    with pytest.raises(error, match=message):
        model.encode_batches(TEXTS, **arguments)  # before anything is read
    with pytest.raises(error, match=message):
        model.encode([], **arguments)


@pytest.mark.parametrize("kept", [1, 7, 23, 24, 25, 1000, np.int64(7)])
def test_the_first_features(kept: int, tmp_path: Path) -> None:
    whole = _model(tmp_path / "whole", "Normalize").encode(TEXTS)
    plain = _model(tmp_path / "plain").encode(TEXTS)
    for directory, given in (("file", {"truncate_dim": int(kept)}), ("call", {})):
        scaled, unscaled = (_model(tmp_path / directory / kind, *[kind] * (kind != "as it is"), **given)
                            for kind in ("Normalize", "as it is"))  # fmt: skip
        argument: Any = {} if given else {"truncate_dim": kept}
        width = min(int(kept), 24)
        assert scaled.embed_dim == (width if given else 24)
        assert_same_bits(scaled.encode(TEXTS, **argument), whole[:, :width])
        assert_same_bits(scaled.encode(TEXTS[1], **argument), whole[1, :width])
        assert_same_bits(unscaled.encode(TEXTS, **argument), plain[:, :width])
        assert_same_bits(scaled.encode(TEXTS, normalize=False, **argument), plain[:, :width])
        exact = plain[:, :width].astype(np.float64)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        for model in (scaled, unscaled):
            short = model.encode(TEXTS, normalize=True, **argument)
            assert_close(short, exact, np.full(exact.shape, EMBEDDING_BOUND), label="of length 1")
        tokens = [tiny_bert.ids(text) for text in TEXTS]
        assert_same_bits(scaled.encode_tokens(tokens, **argument), whole[:, :width])
        assert scaled.encode_tokens([], **argument).shape == (0, width)
        assert scaled.encode([], **argument).shape == (0, width)


def test_a_call_has_more_features_than_the_file(tmp_path: Path) -> None:
    model = _model(tmp_path, truncate_dim=5)
    assert model.encode(TEXTS).shape == (len(TEXTS), 5)
    assert model.encode(TEXTS, truncate_dim=9).shape == (len(TEXTS), 9)
    assert "embed_dim=5" in repr(model)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_what_compares_embeddings(name: str, tmp_path: Path) -> None:
    assert _model(tmp_path / "a", similarity_fn_name=name).similarity_fn_name == name
    assert _model(tmp_path / "b", similarity_fn_name=None).similarity_fn_name == "cosine"
    assert _model(tmp_path / "c").similarity_fn_name == "cosine"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "CrossEncoder"),
        ("model_type", "SparseEncoder"),
        ("model_type", None),
        ("prompts", ["query"]),
        ("prompts", {"query": 3}),
        ("prompts", {"query": "a\ud800"}),
        ("prompts", 3),
        ("default_prompt_name", "passage"),
        ("default_prompt_name", 3),
        ("default_prompt_name", ["query"]),
        ("truncate_dim", 0),
        ("truncate_dim", -3),
        ("truncate_dim", 2.5),
        ("truncate_dim", "256"),
        ("truncate_dim", True),
        ("truncate_dim", 10**30),
        ("similarity_fn_name", "maxsim"),
        ("similarity_fn_name", 3),
    ],
    ids=lambda x: ascii(x),
)
def test_settings_that_cannot_be(key: str, value: Any, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={NAME: {key: value}})
    assert_not_loaded(tmp_path, str(tmp_path / NAME), key)


def _rows(out: str) -> Array:
    return np.array([json.loads(line)["embedding"] for line in out.splitlines()], np.float32)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = _model(tmp_path / "model", prompts=PROMPTS, default_prompt_name="query", truncate_dim=5)
    command = ["embed", "--model", str(tmp_path / "model"), "dog", "cat"]
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert_same_bits(_rows(out), model.encode(["dog", "cat"]))
    assert_same_bits(
        _rows(run(capsys, *command, "--prompt-name", "long")[1]), model.encode(["dog", "cat"], prompt_name="long")
    )
    assert_same_bits(_rows(run(capsys, *command, "--prompt", "")[1]), model.encode(["dog", "cat"], prompt=""))
    output = tmp_path / "out.npy"
    assert run(capsys, *command, "--output", str(output))[0] == 0
    assert_same_bits(np.load(output), model.encode(["dog", "cat"]))
    assert_refused(*run(capsys, *command, "--prompt-name", "passage"), "passage", "query")
    assert_refused(*run(capsys, *command, "--prompt-name", "passage", "--output", str(output)), "passage")


@pytest.mark.parametrize(
    "arguments",
    [["--explain", "dog", "--prompt", "a"], ["--explain", "dog", "--prompt-name", "a"],
     ["dog", "--prompt", "a", "--prompt-name", "b"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run(capsys, "embed", "--model", str(tmp_path), *arguments)
    assert error.value.code == 2


def test_the_oracle_with_a_prompt(tmp_path: Path) -> None:
    settings, tensors = tiny_bert.config(), tiny_bert.tensors(tiny_bert.config())
    model = _model(tmp_path, prompts=PROMPTS)
    expected = [
        bert_oracle.hidden_states(tensors, settings, tiny_bert.ids("the cat " + text)).mean(0) for text in TEXTS
    ]
    exact = np.stack(expected)
    bound = EMBEDDING_BOUND * np.maximum(np.abs(exact), 1)
    assert_close(model.encode(TEXTS, prompt_name="query"), exact, bound, label="prompt")
