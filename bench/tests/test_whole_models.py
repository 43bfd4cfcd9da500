"""ModernBERT, decoders, ViT and the texts of CLIP: their work, what rows refuse; the check tells them apart."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_native import reference
from mha_native_bench.cases.case import BLOCKED, Case
from mha_native_bench.cases.clip_text import END, clip_text_vector
from mha_native_bench.cases.image_model import vit_vectors
from mha_native_bench.cases.inputs import make_inputs
from mha_native_bench.cases.language_model import EMBEDDINGS, EPS, language_model_state
from mha_native_bench.cases.load import load_cases
from mha_native_bench.cases.modernbert import POSITIONS, modernbert_rows
from mha_native_bench.cases.oracle import largest_error, oracle, tolerance
from mha_native_bench.cases.sentence_model import Models
from mha_native_bench.contenders import Ours, make_contender
from mha_native_bench.measure.rounds import check

DECODER = Case(
    "decoder", "decoder", "f32", B=2, H=4, Hk=2, Tq=3, Tk=9, D=8, E=32, causal=False,
    F=48, activation="silu", layers=2, V=50,
)  # fmt: skip
MODERN = Case(
    "modern", "sentences", "f32", B=3, H=2, Hk=2, Tq=9, Tk=9, D=8, E=16, causal=False,
    F=24, activation="gelu", layers=4, family="modernbert", window=(2, 2), shortest=9,
)  # fmt: skip

IMAGES = Case(
    "images", "images", "f32", B=2, H=2, Hk=2, Tq=5, Tk=5, D=8, E=16, causal=False, F=24, activation="gelu", layers=2,
)  # fmt: skip

CLIP = Case(
    "clip", "sentences", "f32", B=2, H=2, Hk=2, Tq=7, Tk=7, D=8, E=16, causal=True,
    F=24, activation="quick_gelu", layers=2, family="clip_text", shortest=7,
)  # fmt: skip


@pytest.fixture
def models() -> Iterator[Models]:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    with Models(None) as written:
        yield written


def test_a_decoder_has_the_work_of_its_new_tokens() -> None:
    in_layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48  # query, key and value, out, feed-forward
    assert DECODER.matrices_of_layer == in_layer
    pairs = 2 * (7 + 8 + 9)  # keys that the last three of nine tokens see, in two sequences
    assert DECODER.visible_pairs == pairs
    assert DECODER.flops == 2 * (2 * 6 * in_layer + 4 * 4 * 8 * pairs) + 2 * 2 * 32 * 50
    weights = 2 * in_layer + 32 * 50
    caches = 2 * 2 * 2 * 2 * 9 * 8 * 4  # keys and values, layers, sequences, heads, tokens, features, bytes
    for changes, size in (({}, 4), ({"weights": "bf16"}, 2), ({"weights": "int8"}, 1)):
        case = dataclasses.replace(DECODER, **changes)
        assert case.streamed_bytes == weights * size + 2 * 2 * 32 * 4 + caches
        assert case.least_bytes == case.streamed_bytes + (6 * 32 + 2 * 50) * 4
    state = language_model_state(DECODER)
    assert sum(array.size for array in state.values()) == weights + 2 * 2 * 32 + 32


def test_images_have_the_work_of_their_patches() -> None:
    in_layer = 4 * 16 * 16 + 2 * 16 * 24
    assert IMAGES.flops == 2 * 2 * 10 * in_layer + 2 * 4 * 2 * 8 * 2 * 25 + 2 * 2 * 4 * 3 * 16 * 16 * 16
    assert IMAGES.image_size == 32
    assert IMAGES.least_bytes == 4 * 2 * (3 * 32 * 32 + 16) + IMAGES.weight_bytes


def test_the_text_tower_of_clip_has_causal_pairs_and_a_head() -> None:
    in_layer = 4 * 16 * 16 + 2 * 16 * 24
    assert CLIP.flops == 2 * 2 * 14 * in_layer + 2 * 4 * 2 * 8 * 2 * 28 + 2 * 2 * 16 * 16
    vectors = 4 * 16 + 24 + 5 * 16
    assert CLIP.least_bytes == 4 * (16 * 16 + (14 + 2) * 16 + 2 * (in_layer + vectors))


def test_modernbert_has_windows_in_two_of_three_layers() -> None:
    assert MODERN.visible_pairs == 3 * (9 + 2 * 8 + 2 * 7)  # of nine tokens each sees two to both sides
    pairs = 2 * MODERN.visible_pairs + 2 * 3 * 81
    in_layer = 4 * 16 * 16 + 3 * 16 * 24
    assert MODERN.flops == 4 * 2 * 27 * in_layer + 4 * 2 * 8 * pairs
    assert dataclasses.replace(MODERN, layers=1).flops == 2 * 27 * in_layer + 4 * 2 * 8 * 3 * 81


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (DECODER, {"V": 0}),
        (DECODER, {"dtype": "bf16"}),
        (DECODER, {"causal": True}),
        (DECODER, {"Tq": 10}),
        (DECODER, {"activation": "gelu"}),
        (DECODER, {"family": "modernbert"}),
        (DECODER, {"window": (2, 2)}),
        (IMAGES, {"Tq": 6, "Tk": 6}),
        (IMAGES, {"causal": True}),
        (IMAGES, {"Tk": 7}),
        (CLIP, {"causal": False}),
        (CLIP, {"shortest": 3}),
        (CLIP, {"texts": True}),
        (CLIP, {"activation": "gelu"}),
        (MODERN, {"activation": "quick_gelu"}),
        (MODERN, {"V": 50}),
        (MODERN, {"family": "roberta"}),
        (MODERN, {"family": ""}),
        (MODERN, {"activation": "silu"}),
        (MODERN, {"softcap": 2.0}),
    ],
)
def test_rows_that_make_no_sense_are_refused(case: Case, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=case.name):
        dataclasses.replace(case, **changes)


def test_a_window_of_modernbert_reaches_as_far_to_both_sides(models: Models) -> None:
    with pytest.raises(ValueError, match="as far to both sides"):
        models.directory(dataclasses.replace(MODERN, window=(2, 1)))


def test_the_model_that_is_given_is_not_for_modernbert(models: Models, tmp_path: Path) -> None:
    directory = models.directory(MODERN)
    assert directory is not None
    assert models.directory(dataclasses.replace(MODERN, B=1)) == directory
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["local_attention"]) == ("modernbert", 4)
    assert json.loads((directory / "tokenizer_config.json").read_text())["model_max_length"] == POSITIONS
    with Models(tmp_path) as given:
        assert given.directory(MODERN) not in (None, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"weights": "bf16"}, {"weights": "int8"}], ids=str)
@pytest.mark.parametrize("new", [1, 3, 9])
def test_this_library_continues_a_text(new: int, changes: dict[str, Any]) -> None:
    case = dataclasses.replace(DECODER, Tq=new, **changes)
    inputs = make_inputs(case)
    expected = oracle(case, inputs)
    assert expected.shape == (2, 50)
    [program] = Ours([2]).programs(case, inputs, 2)
    [timed] = check(case, [program], expected).timed
    np.testing.assert_array_equal(program.run(), program.run())  # each call finds its caches as the one before did
    if changes:  # the format was not lost on the way
        [plain] = check(DECODER, Ours([1]).programs(DECODER, inputs, 1), expected).timed
        assert timed.error is not None
        assert plain.error is not None
        assert timed.error > 16 * plain.error


@pytest.mark.parametrize("changes", [{}, {"shortest": 3}, {"dtype": "bf16"}, {"weights": "int8"}], ids=str)
def test_this_library_embeds_by_modernbert(models: Models, changes: dict[str, Any]) -> None:
    if "dtype" in changes:
        pytest.importorskip("ml_dtypes")
    case = dataclasses.replace(MODERN, **changes)
    inputs = make_inputs(case, models.directory(case))
    assert len(check(case, Ours([1]).programs(case, inputs, 1), oracle(case, inputs)).timed) == 1


@pytest.mark.parametrize("changes", [{}, {"dtype": "bf16"}, {"weights": "int8"}], ids=str)
def test_this_library_embeds_images(models: Models, changes: dict[str, Any]) -> None:
    from safetensors.numpy import load_file

    pytest.importorskip("PIL")
    if "dtype" in changes:
        pytest.importorskip("ml_dtypes")
    case = dataclasses.replace(IMAGES, **changes)
    directory = models.directory(case)
    assert directory is not None
    inputs = make_inputs(case, directory)
    expected = oracle(case, inputs)
    assert expected.shape == (2, 16)
    assert len(check(case, Ours([1]).programs(case, inputs, 1), expected).timed) == 1
    # Patches by columns, which a wrong layout of an image makes of them.
    turned = vit_vectors(case, load_file(directory / "model.safetensors"), inputs.arrays[0].swapaxes(2, 3))
    assert largest_error(turned, expected) > 2 * tolerance(case, expected)


@pytest.mark.parametrize("changes", [{}, {"dtype": "bf16"}, {"weights": "int8"}], ids=str)
def test_this_library_embeds_texts_of_clip(models: Models, changes: dict[str, Any]) -> None:
    from safetensors.numpy import load_file

    if "dtype" in changes:
        pytest.importorskip("ml_dtypes")
    case = dataclasses.replace(CLIP, **changes)
    directory = models.directory(case)
    assert directory is not None
    inputs = make_inputs(case, directory)
    assert [np.flatnonzero(text == END).tolist() for text in inputs.arrays] == [[6], [6]]
    expected = oracle(case, inputs)
    assert expected.shape == (2, 16)
    assert len(check(case, Ours([1]).programs(case, inputs, 1), expected).timed) == 1
    tensors = load_file(directory / "model.safetensors")
    bert = dataclasses.replace(CLIP, family="", activation="gelu")
    for other, is_same in ((CLIP, True), (bert, False), (dataclasses.replace(bert, causal=False), False)):
        vectors = np.array([clip_text_vector(other, tensors, text) for text in inputs.arrays])
        error = largest_error(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), expected)
        assert (error <= tolerance(CLIP, expected)) == is_same


@pytest.mark.parametrize("weights", ["", "bf16"])
def test_a_decoder_whose_heads_do_not_turn_is_found(weights: str) -> None:
    case = dataclasses.replace(DECODER, weights=weights)
    inputs = make_inputs(case)
    expected = oracle(case, inputs)
    state = {name: array for name, array in inputs.state.items() if name != EMBEDDINGS}
    words = inputs.state[EMBEDDINGS]
    rows = reference.encoder(
        words[inputs.arrays[0]], state, case.H, num_kv_heads=case.Hk, activation="silu", norm_first=True, norm="rms",
        eps=EPS, is_causal=True,
    )  # fmt: skip
    assert largest_error(reference.linear(rows[:, -1], words), expected) > 2 * tolerance(case, expected)


def test_a_modernbert_without_windows_is_found(models: Models) -> None:
    from safetensors.numpy import load_file

    directory = models.directory(MODERN)
    assert directory is not None
    tensors = load_file(directory / "model.safetensors")
    inputs = make_inputs(MODERN, directory)
    expected = oracle(MODERN, inputs)
    for case, is_same in ((MODERN, True), (dataclasses.replace(MODERN, window=(9, 9)), False)):
        means = [modernbert_rows(case, tensors, text).mean(0) for text in inputs.arrays]
        error = largest_error(np.array([mean / np.linalg.norm(mean) for mean in means]), expected)
        assert (error <= tolerance(MODERN, expected)) == is_same


def test_one_token_is_held_against_reading_weights_and_caches() -> None:
    case = dataclasses.replace(DECODER, Tq=1)
    [program] = make_contender("read", [1]).programs(case, make_inputs(case), 1)
    whole, rest = divmod(case.streamed_bytes, 8)
    assert rest == 0
    assert program.run() == (0x0101010101010101 if whole % 2 else 0)
    assert make_contender("read", [1]).programs(DECODER, make_inputs(DECODER), 1) == []


def test_the_large_models_run_if_they_are_named() -> None:
    large = [case for case in load_cases() if case.is_modern]
    assert {(case.family or case.kind, case.dtype, case.weights) for case in large} == {
        ("modernbert", "f32", ""), ("modernbert", "bf16", ""),
        ("decoder", "f32", ""), ("decoder", "f32", "bf16"), ("decoder", "f32", "int8"),
        ("decoder", "f32", "int4"), *(("decoder", "f32", weights) for weights in BLOCKED),
    }  # fmt: skip
    assert all(case.extra for case in large)
    params = {case.layers * case.matrices_of_layer + case.E * case.V for case in large if case.kind == "decoder"}
    assert params == {134_479_872, 138_412_032}  # of SmolLM2-135M, and two layers of Llama-3.2-1B, without norms
