"""Every argument that is a bool, of everything public: a bool or numpy.bool goes in, and nothing that resembles one."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mha_native as mha
from mha_native import models
from mha_native.interop import onnx

X = np.ones((1, 2, 3, 4), np.float32)
ROWS = np.ones((3, 2, 4), np.float32)
TOKENS = np.ones((1, 3, 8), np.float32)
OFFSETS = np.array([0, 3])

SENTENCES, LANGUAGE, TRANSLATOR = "models.SentenceEncoder", "models.CausalLM", "models.Seq2SeqLM"
SPARSE = "models.SparseEncoder"
IMAGES = "models.ImageTextEncoder"
BGE = "models.BGEM3Encoder"
LAYER = mha.MultiHeadAttention(8, 2, seed=0)
BLOCKS: dict[str, Any] = {
    "EncoderLayer": mha.EncoderLayer(8, 2, 8),
    "DecoderLayer": mha.DecoderLayer(8, 2, 8),
    "Encoder": mha.Encoder(1, 8, 2, 8),
    "CausalDecoder": mha.CausalDecoder(1, 8, 2, 8),
    "Decoder": mha.Decoder(1, 8, 2, 8),
}


def _blocks() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, block in BLOCKS.items():
        kind = type(block)
        sizes = (8, 2, 8) if name.endswith("Layer") else (1, 8, 2, 8)
        memory = (TOKENS,) if "Decoder" in name and name != "CausalDecoder" else ()
        yield name, lambda kind=kind, sizes=sizes, **flags: kind(*sizes, **flags)
        calls = {"__call__": block, "forward_and_record": block.forward_and_record}
        for method, call in calls.items():
            yield f"{name}.{method}", lambda call=call, memory=memory, **flags: call(TOKENS, *memory, **flags)


# A call of each, by the name of what is called.
CALLS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": lambda **flags: mha.scaled_dot_product_attention(X, X, X, **flags),
    "scaled_dot_product_attention_varlen": lambda **flags: mha.scaled_dot_product_attention_varlen(
        ROWS, ROWS, ROWS, OFFSETS, OFFSETS, **flags
    ),
    "attention_gradient": lambda **flags: mha.attention_gradient(X, X, X, X, X[..., 0], X, **flags),
    "attention_gradient_varlen": lambda **flags: mha.attention_gradient_varlen(
        ROWS, ROWS, ROWS, OFFSETS, OFFSETS, ROWS, ROWS[..., 0], ROWS, **flags
    ),
    "rms_norm_gradient": lambda **flags: mha.rms_norm_gradient(ROWS, None, ROWS, wrt=(), **flags),
    "linear": lambda **flags: mha.linear(ROWS[0], ROWS[0], **flags),
    "linear_gradient": lambda **flags: mha.linear_gradient(ROWS[0], ROWS[0], ROWS[0], **flags),
    "attention_weights": lambda **flags: mha.attention_weights(X, X, **flags),
    "attention_statistics": lambda **flags: mha.attention_statistics(X, X, **flags),
    "MultiHeadAttention": lambda **flags: mha.MultiHeadAttention(8, 2, **flags),
    "MultiHeadAttention.__call__": lambda **flags: LAYER(TOKENS, cache=LAYER.new_cache(1, 3), **flags),
    "MultiHeadAttention.forward_and_record": lambda **flags: LAYER.forward_and_record(TOKENS, **flags),
    "LayerNorm": lambda **flags: mha.LayerNorm(8, **flags),
    "Linear": lambda **flags: mha.Linear(8, 8, **flags),
    "RotaryEmbedding": lambda **flags: mha.RotaryEmbedding(ROWS[0], ROWS[0], **flags),
    "RotaryEmbedding.from_base": lambda **flags: mha.RotaryEmbedding.from_base(4, 8, **flags),
    "RMSNorm": lambda **flags: mha.RMSNorm(8, **flags),
    "FeedForward": lambda **flags: mha.FeedForward(8, 8, **flags),
    "Experts": lambda **flags: mha.Experts(8, 8, 2, 1, **({"shared_dim": 4} | flags)),
    "Experts.from_weights": lambda **flags: mha.Experts.from_weights(
        mha.Experts(8, 8, 2, 1, gated=flags.get("gated", True)).state_dict(), 1, **flags
    ),
    "MultiHeadAttention.from_weights": lambda **flags: mha.MultiHeadAttention.from_weights(
        LAYER.state_dict(), 2, **flags
    ),
    "RMSNorm.from_weights": lambda **flags: mha.RMSNorm.from_weights(ROWS[0, 0], **flags),
    "EncoderLayer.from_parts": lambda **flags: mha.EncoderLayer.from_parts(LAYER, mha.FeedForward(8, 8), **flags),
    "DecoderLayer.from_parts": lambda **flags: mha.DecoderLayer.from_parts(
        LAYER, LAYER, mha.FeedForward(8, 8), **flags
    ),
    **dict(_blocks()),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., Any]]:
    pytest.importorskip("tokenizers")
    tiny_bert = pytest.importorskip("tiny_bert")
    model = models.SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path_factory.mktemp("model")))
    return {
        f"{SENTENCES}.encode": lambda **flags: model.encode("dog", **flags),
        f"{SENTENCES}.encode_batches": lambda **flags: model.encode_batches(["dog"], **flags),
        f"{SENTENCES}.encode_tokens": lambda **flags: model.encode_tokens([[2, 3]], **flags),
        **_of_reader(SENTENCES, model),
        **_of_reader(
            SPARSE, models.SparseEncoder.from_pretrained(tiny_bert.write_masked(tmp_path_factory.mktemp("mlm")))
        ),
        **_of_bge(tmp_path_factory.mktemp("bge")),
        **_of_late_interaction(tmp_path_factory.mktemp("late")),
        **_of_classifiers(tmp_path_factory),
        **_of_language_model(tmp_path_factory.mktemp("language_model")),
        **_of_translator(tmp_path_factory.mktemp("translator")),
        **_of_speech(tmp_path_factory.mktemp("speech")),
        **_of_images(tmp_path_factory.mktemp("images")),
    }


def _of_images(folder: Path) -> dict[str, Callable[..., Any]]:
    tiny_images = pytest.importorskip("tiny_images")
    model = models.ImageTextEncoder.from_pretrained(tiny_images.write(folder, tiny_images.config("clip")))
    return {
        f"{IMAGES}.encode_images": lambda **flags: model.encode_images(np.zeros((9, 9, 3), np.uint8), **flags),
        f"{IMAGES}.encode_texts": lambda **flags: model.encode_texts("a", **flags),
        **_of_reader(IMAGES, model),
    }


def _of_bge(folder: Path) -> dict[str, Callable[..., Any]]:
    tiny_sparse = pytest.importorskip("tiny_sparse")
    model = models.BGEM3Encoder.from_pretrained(tiny_sparse.write_bge(folder))
    return {f"{BGE}.encode": lambda **flags: model.encode("dog", **flags), **_of_reader(BGE, model)}


def _of_late_interaction(folder: Path) -> dict[str, Callable[..., Any]]:
    tiny_multi_vector = pytest.importorskip("tiny_multi_vector")
    model = models.MultiVectorEncoder.from_pretrained(tiny_multi_vector.write_pylate(folder))
    name = "models.MultiVectorEncoder"
    return {f"{name}.rank": lambda **flags: model.rank("dog", ["cat"], **flags), **_of_reader(name, model)}


def _of_language_model(folder: Path) -> dict[str, Callable[..., Any]]:
    pytest.importorskip("jinja2")
    tiny_language_model = pytest.importorskip("tiny_language_model")
    model = models.CausalLM.from_pretrained(tiny_language_model.write(folder))
    messages = [{"role": "user", "content": "the"}]
    return {
        f"{LANGUAGE}.generate": lambda **flags: model.generate("a", max_new_tokens=1, **flags),
        f"{LANGUAGE}.generate_tokens": lambda **flags: model.generate_tokens("a", max_new_tokens=1, **flags),
        f"{LANGUAGE}.complete": lambda **flags: model.complete("a", max_new_tokens=1, **flags),
        f"{LANGUAGE}.chat": lambda **flags: model.chat(messages, max_new_tokens=1, **flags),
        f"{LANGUAGE}.apply_chat_template": lambda **flags: model.apply_chat_template(messages, **flags),
        f"{LANGUAGE}.tokenize": lambda **flags: model.tokenize("a", **flags),
        **_of_reader(LANGUAGE, model),
    }


def _of_translator(folder: Path) -> dict[str, Callable[..., Any]]:
    tiny_generators = pytest.importorskip("tiny_generators")
    model = models.Seq2SeqLM.from_pretrained(tiny_generators.write(folder, tiny_generators.config("bart")))
    return {
        f"{TRANSLATOR}.generate": lambda **flags: model.generate("a", max_new_tokens=1, **flags),
        f"{TRANSLATOR}.generate_tokens": lambda **flags: model.generate_tokens([[2, 3]], max_new_tokens=1, **flags),
        f"{TRANSLATOR}.tokenize": lambda **flags: model.tokenize("a", **flags),
        **_of_reader(TRANSLATOR, model),
    }


def _of_speech(folder: Path) -> dict[str, Callable[..., Any]]:
    tiny_speech = pytest.importorskip("tiny_speech")
    model = models.SpeechSeq2Seq.from_pretrained(tiny_speech.write(folder, tiny_speech.config()))
    encoded = model.encode(np.ones((1, 80, 4), np.float32))
    return {
        "models.SpeechSeq2Seq.alignment": lambda **flags: model.alignment(encoded, 0, [3], **flags),
        "models.SpeechDecoder.step": lambda **flags: model.decoder(encoded, [0]).step([[3]], **flags),
        **_of_reader("models.SpeechSeq2Seq", model),
    }


def _of_reader(name: str, model: Any) -> dict[str, Callable[..., Any]]:
    return {
        f"{name}.tokens_of": lambda **flags: model.tokens_of("a", **flags),
        f"{name}.count_tokens": lambda **flags: model.count_tokens("a", **flags),
    }


def _of_classifiers(folders: pytest.TempPathFactory) -> dict[str, Callable[..., Any]]:
    tiny_classifiers = pytest.importorskip("tiny_classifiers")
    calls: dict[str, Callable[..., Any]] = {}
    for kind in (models.TextClassifier, models.TokenClassifier):
        folder = tiny_classifiers.write(folders.mktemp(kind.__name__), tokens=kind is models.TokenClassifier)
        calls |= _of_reader(f"models.{kind.__name__}", kind.from_pretrained(folder))
    return calls


def _annotations(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Each argument and its annotation as it is written, those of a TypedDict behind ``**`` included."""
    for name, parameter in inspect.signature(function).parameters.items():
        if unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            options = inspect.unwrap(function).__globals__[unpacked[1]].__annotations__
            yield from ((key, getattr(kind, "__forward_arg__", str(kind))) for key, kind in options.items())
        elif isinstance(parameter.default, bool):
            yield name, "bool"
        else:
            kind = parameter.annotation
            yield name, kind.__name__ if isinstance(kind, type) else str(kind)


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything public that can be called. `reference`, which checks no argument, says what calls mean."""
    names = [*mha.__all__, *(f"interop.onnx.{x}" for x in onnx.__all__), *(f"models.{x}" for x in models.__all__)]
    for name in names:
        thing = operator.attrgetter(name)(mha)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for member, x in inspect.getmembers(thing, inspect.isroutine):
                if member == "__init__" and inspect.isfunction(x):
                    yield name, x
                elif (member == "__call__" or not member.startswith("_")) and inspect.isroutine(x):
                    function = inspect.unwrap(getattr(x, "__func__", x))
                    if inspect.isfunction(function):
                        yield f"{name}.{member}", function


FLAGS = {
    (name, argument): "None" in kind
    for name, function in _functions()
    for argument, kind in _annotations(function)
    if "bool" in kind
}

# Those that may be something else, too: a list of names, of the parts that have what the flag gives to all; a word.
OTHER_KINDS: dict[tuple[str, str], type] = {
    ("MultiHeadAttention", "bias"): list,
    ("FeedForward", "bias"): list,
    ("Experts", "bias"): list,
    (f"{TRANSLATOR}.generate", "early_stopping"): str,
    (f"{TRANSLATOR}.generate_tokens", "early_stopping"): str,
}

WRONG: list[Any] = ["no", "yes", "", 0, 1, 1.0, np.int64(1), [], [True], np.array(True), np.array([True, False]), {}]


def test_flags_are_found() -> None:
    for known in (
        ("scaled_dot_product_attention", "return_lse"),
        ("attention_weights", "is_causal"),
        ("MultiHeadAttention", "add_zero_attn"),
        ("MultiHeadAttention.__call__", "append"),
        ("LayerNorm", "bias"),
        ("Encoder", "norm_first"),
        ("DecoderLayer.__call__", "need_weights"),
        ("Decoder.__call__", "is_causal"),
        (f"{SENTENCES}.encode", "normalize"),
        (f"{LANGUAGE}.generate", "stream"),
    ):
        assert known in FLAGS
    assert len(FLAGS) >= 41


def _call(name: str, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A new function with a flag fails here until it is called above."""
    calls = request.getfixturevalue("pretrained") if name.startswith("models.") else CALLS
    return calls[name]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "flag"), FLAGS, ids=str)
def test_a_flag_is_a_bool(name: str, flag: str, request: pytest.FixtureRequest) -> None:
    call = _call(name, request)
    for right in (True, False, np.True_, np.False_):
        call(**{flag: right})
    # What a call is named in messages: of a layer, by the layer.
    function = re.escape(name.removesuffix(".__call__").rpartition("models.")[2])
    other_kind = OTHER_KINDS.get((name, flag), type(None))
    for wrong in [*WRONG, *([] if FLAGS[name, flag] else [None])]:
        if wrong is not None and isinstance(wrong, other_kind):
            continue
        with pytest.raises(TypeError, match=rf"^{function}: {flag} must be a bool; got ") as error:
            call(**{flag: wrong})
        assert len(str(error.value)) < 200


def test_need_weights_of_a_ragged_batch() -> None:
    with pytest.raises(TypeError, match=r"^MultiHeadAttention: need_weights must be a bool; got 'no'"):
        LAYER(TOKENS[0], cu_seqlens_q=OFFSETS, need_weights="no")
