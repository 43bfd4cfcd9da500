"""`SpeechSeq2Seq`: Whisper from the files of transformers and CTranslate2, its steps, and what it refuses."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("ml_dtypes")

import tiny_speech
from tiny_speech import GENERATION, ROWS, TOKENS, VARIANTS, VOCABULARY
from tolerance import assert_same_bits

from mha_native.models.speech_seq2seq import SpeechSeq2Seq

Array = np.ndarray[Any, Any]


def _features(config: dict[str, Any], batch: int = 3, frames: int = 2 * ROWS) -> Array:
    return np.random.default_rng(7).standard_normal((batch, config["num_mel_bins"], frames), dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_speech.write(tmp_path_factory.mktemp("whisper"), tiny_speech.config())


@pytest.fixture(scope="module")
def model(folder: Path) -> SpeechSeq2Seq:
    return SpeechSeq2Seq.from_pretrained(folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_against_transformers_in_float64(variant: str, tmp_path: Path) -> None:
    """Rows, logits and weights; shorter windows are those of an encoder with as many positions."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = tiny_speech.config(variant)
    tiny_speech.write(tmp_path, config)
    model = SpeechSeq2Seq.from_pretrained(tmp_path, dtype="float64")
    options: Any = {"dtype": torch.float64, "attn_implementation": "eager"}
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path, **options).eval()
    features, tokens = _features(config), np.array([[3, 8, 9, 10, 11], [3, 4, 5, 6, 7], [3, 3, 9, 1, 2]])
    for length in (ROWS, ROWS - 7):
        theirs.model.encoder.max_source_positions = theirs.config.max_source_positions = length
        positions = theirs.model.encoder.embed_positions.weight[:length]
        theirs.model.encoder.embed_positions = torch.nn.Embedding.from_pretrained(positions)
        part = features[:, :, : 2 * length]
        with torch.no_grad():
            expected = theirs(
                input_features=torch.from_numpy(part.astype(np.float64)),
                decoder_input_ids=torch.from_numpy(tokens),
                output_attentions=True,
            )
        encoded = model.encode(part)
        np.testing.assert_allclose(encoded.rows, expected.encoder_last_hidden_state.numpy(), rtol=0, atol=1e-12)
        logits = model.decoder(encoded, [0, 1, 2]).step(list(tokens))
        np.testing.assert_allclose(logits.reshape(3, 5, -1), expected.logits.numpy(), rtol=0, atol=1e-12)
        layers, num_heads = config["decoder_layers"], config["decoder_attention_heads"]
        heads = [(layers - 1, num_heads - 1), (0, 0), (0, 1)]
        weights, same = model.alignment(encoded, 1, tokens[1], heads, logits=True)
        of_heads = [expected.cross_attentions[i][1, j].numpy() for i, j in heads]
        np.testing.assert_allclose(weights, np.stack(of_heads), rtol=0, atol=1e-12)
        np.testing.assert_allclose(same, expected.logits[1].numpy(), rtol=0, atol=1e-12)


def test_float32_and_narrow_weights(folder: Path, model: SpeechSeq2Seq) -> None:
    """float32 is near float64; each format of weights moves logits, and by as much as its digits are worth."""
    features = _features(tiny_speech.config())

    def logits(of: SpeechSeq2Seq) -> Array:
        decoder = of.decoder(of.encode(features), [0, 1, 2])
        return np.asarray(decoder.step([[3, 8, 9]] * 3), np.float64)

    expected = logits(model.astype("float64"))
    assert np.abs(logits(model) - expected).max() < 1e-5 * np.abs(expected).max()
    for weight_dtype, bound in (("bfloat16", 0.03), ("int8", 0.06), ("int4", 0.6)):
        other = SpeechSeq2Seq.from_pretrained(folder, weight_dtype=weight_dtype)
        assert other.weight_dtype == weight_dtype
        error = np.abs(logits(other) - expected).max() / np.abs(expected).max()
        assert 1e-5 < error < bound, weight_dtype
        weights = other.alignment(other.encode(features), 0, [3, 4, 5])
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    copied = pickle.loads(pickle.dumps(model))
    assert_same_bits(logits(copied).astype(np.float32), logits(model).astype(np.float32))
    half = model.astype("bfloat16")
    assert half.encode(features).rows.dtype == half.dtype
    assert model.weight_bytes["float32"] > 4 * VOCABULARY * 24


def test_bits_depend_on_no_other_sequence_window_or_thread(model: SpeechSeq2Seq) -> None:
    """Steps of any lengths, sequences in any order, beams that share a window, and selections."""
    features, rng = _features(tiny_speech.config()), np.random.default_rng(0)
    encoded = model.encode(features, num_threads=2)
    alone = [model.encode(features[i : i + 1], num_threads=1) for i in range(3)]
    for i in range(3):
        assert_same_bits(encoded.rows[i], alone[i].rows[0])
    windows = rng.integers(0, 3, 5)
    histories: list[list[int]] = [[] for _ in windows]
    decoder = model.decoder(encoded, windows, num_threads=2)
    grown = 0
    for step in range(5):
        new = [rng.integers(0, VOCABULARY, rng.integers(1, 4)).tolist() for _ in windows]
        logits = decoder.step(new)
        histories = [history + more for history, more in zip(histories, new, strict=True)]
        last = np.cumsum([len(more) for more in new])
        for i, (window, history) in enumerate(zip(windows, histories, strict=True)):
            expected = model.decoder(alone[window], [0], num_threads=1).step([history])
            assert_same_bits(logits[last[i] - len(new[i]) : last[i]], expected[-len(new[i]) :])
        assert decoder.lengths.tolist() == [len(history) for history in histories]
        chosen = rng.integers(0, len(windows), [9, 4, 20, 3, 1][step])  # more than there was room for, and fewer
        grown += len(chosen) > 8
        decoder.select(chosen)
        windows, histories = windows[chosen], [histories[i] for i in chosen]
    assert grown == 2
    assert all(cache._check() for cache in decoder._caches)
    last_only = model.decoder(encoded, [2, 0]).step([[3, 4], [5]], last_only=True)
    assert_same_bits(last_only, model.decoder(encoded, [2, 0]).step([[3, 4], [5]])[[1, 2]])
    weights = model.alignment(encoded, 1, [3, 4, 5], num_threads=2)
    assert weights.shape == (2, 3, ROWS)
    assert_same_bits(weights, model.alignment(alone[1], 0, [3, 4, 5], num_threads=1))
    assert_same_bits(weights[:1], model.alignment(encoded, 1, [3, 4, 5], [(0, 1)]))


def test_settings(tmp_path: Path, model: SpeechSeq2Seq) -> None:
    assert (model.mel_bins, model.max_frames, model.max_target_positions) == (80, 2 * ROWS, TOKENS)
    assert (model.vocab_size, model.num_layers, model.num_decoder_layers) == (VOCABULARY, 2, 2)
    assert model.alignment_heads == [(0, 1), (0, 0)]
    assert (model.suppress_ids, model.suppress_ids_begin) == ([7, 11], [5, 2])
    assert model.generation_config == GENERATION
    assert not model.multilingual
    assert model.tokenizer.encode("text", "the dog", 0)
    assert "mel_bins=80" in repr(model)
    # Of a file without settings: transformers has had those of config.json, and -1 for its own choice.
    given = tiny_speech.config(suppress_tokens=[9, -1])
    others: Any = {"generation_config.json": {"is_multilingual": True}, "preprocessor_config.json": None}
    bare = SpeechSeq2Seq.from_pretrained(tiny_speech.write(tmp_path, given, others))
    assert bare.alignment_heads == [(1, 0), (1, 1), (1, 2)]
    assert (bare.suppress_ids, bare.suppress_ids_begin, bare.multilingual) == ([9], [], True)


@pytest.mark.parametrize("variant", ["whisper", "distil"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_files_of_ctranslate2(variant: str, dtype: str, tmp_path: Path) -> None:
    """The same bits as files of transformers with the numbers of model.bin; int8 keeps its integers."""
    config = tiny_speech.config(variant)
    tiny_speech.write_ctranslate2(tmp_path / "ct2", config, dtype)
    ours = SpeechSeq2Seq.from_pretrained(tmp_path / "ct2")
    assert (ours.num_layers, ours.num_decoder_layers) == (config["encoder_layers"], config["decoder_layers"])
    assert (ours.suppress_ids, ours.suppress_ids_begin) == ([7, 11], [5, 2])
    assert ours.alignment_heads == [(0, 1), (0, 0)]
    tiny_speech.write(tmp_path / "hf", config)
    if dtype != "float32":
        import ml_dtypes
        from safetensors.numpy import load_file, save_file

        path = tmp_path / "hf" / "model.safetensors"
        weights = load_file(path)
        for name, array in weights.items():
            if dtype != "int8":
                kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
                weights[name] = array.astype(kind).astype(np.float32)
            elif name.endswith("weight") and array.ndim > 1 and "positions" not in name:
                rows = array.reshape(len(array), -1)
                scale = (127 / np.abs(rows).max(1)).astype(np.float32)[:, None]
                weights[name] = (np.rint(rows * scale) / scale).reshape(array.shape)
        save_file(weights, path, metadata={"format": "pt"})
    theirs = SpeechSeq2Seq.from_pretrained(tmp_path / "hf")
    features = _features(config)
    rows = [model.encode(features) for model in (ours, theirs)]
    assert_same_bits(rows[0].rows, rows[1].rows)
    steps = [model.decoder(of, [0, 1]).step([[3, 4], [5]]) for model, of in zip((ours, theirs), rows, strict=True)]
    assert_same_bits(*steps)
    if dtype == "int8":
        narrow = SpeechSeq2Seq.from_pretrained(tmp_path / "ct2", weight_dtype="int8")
        stored = narrow._model.stacks[1].layers.layers[0].feed_forward.state_dict()["linear1.weight"]
        given = tiny_speech.usual_weights(tiny_speech.shapes(config))["model.decoder.layers.0.fc1.weight"]
        np.testing.assert_array_equal(stored, np.rint(given * (127 / np.abs(given).max(1))[:, None]))


def _edited(change: Any, **options: Any) -> bytes:
    config = tiny_speech.config()
    found = tiny_speech.variables(config, tiny_speech.usual_weights(tiny_speech.shapes(config)))
    change(found)
    return tiny_speech.contents(found, **options)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda found: None, {"version": 5}, "must be of version 6; got 5"),
        (lambda found: None, {"kind": "TransformerSpec"}, "must be a WhisperSpec of revision 3; got 'TransformerSpec'"),
        (lambda found: None, {"revision": 2}, "of revision 2"),
        (lambda found: None, {"aliases": {"decoder/projection/weight": "x"}}, "must be of a variable before it"),
        (lambda found: found.update({"decoder/pre_norm": np.array(0, np.int8)}), {}, "pre_norm.*must be 1"),
        (lambda found: found.update({"decoder/activation": np.array(0, np.int8)}), {}, "activation.*must be 3"),
        (lambda found: found.update({"decoder/softcap": np.array(1, np.int8)}), {}, "unknown"),
        (lambda found: found.update({"decoder/layer_0/gate/weight": np.ones((2, 2), np.float32)}), {}, "unknown"),
        (lambda found: found.pop("encoder/num_heads"), {}, "encoder/num_heads must be there"),
        (lambda found: found.pop("encoder/layer_0/ffn/linear_0/bias"), {}, r"missing: encoder\.layers\.0\.fc1\.bias"),
        (
            lambda found: found.update({"decoder/layer_0/self_attention/linear_0/bias": np.ones(72, np.float32)}),
            {},
            "must be zeros",
        ),
        (
            lambda found: found.update({"decoder/layer_0/ffn/linear_0/weight": np.ones((32, 24), np.int8)}),
            {},
            "must have a scale for each of its",
        ),
        (
            lambda found: found.update({"decoder/layer_0/ffn/linear_0/weight": np.ones((32, 24), np.int16)}),
            {},
            "of another dtype: .*fc1.weight I16",
        ),
        (
            lambda found: found.update({"decoder/layer_0/self_attention/linear_0/weight": np.ones((70, 24))}),
            {},
            "float64",
        ),
    ],
)
def test_files_of_ctranslate2_that_are_refused(change: Any, options: Any, message: str, tmp_path: Path) -> None:
    tiny_speech.write_ctranslate2(tmp_path, tiny_speech.config())
    if message == "float64":  # not a type of the format; rows that three parts cannot share

        def change(found: Any) -> None:
            found["decoder/layer_0/self_attention/linear_0/weight"] = np.ones((70, 24), np.float32)

        message = "must have a multiple of 3 rows; got 70"
    (tmp_path / "model.bin").write_bytes(_edited(change, **options))
    with pytest.raises(ValueError, match=f"^SpeechSeq2Seq\\.from_pretrained: .*model\\.bin.*{message}") as caught:
        SpeechSeq2Seq.from_pretrained(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_every_cut_of_model_bin_is_refused(tmp_path: Path) -> None:
    tiny_speech.write_ctranslate2(tmp_path, tiny_speech.config())
    path = tmp_path / "model.bin"
    raw = path.read_bytes()
    lengths = [*range(0, 300, 7), *range(300, len(raw), 4001), len(raw) - 1]
    for length in lengths:
        path.write_bytes(raw[:length])
        with pytest.raises(ValueError, match=r"model\.bin is not a valid CTranslate2 file: ") as caught:
            SpeechSeq2Seq.from_pretrained(tmp_path)
        assert len(str(caught.value).splitlines()) == 1
    path.write_bytes(raw + b"\0")
    with pytest.raises(ValueError, match="must end at byte"):
        SpeechSeq2Seq.from_pretrained(tmp_path)
    # A shape whose product is far beyond the file.
    place = raw.index(struct.pack("<B2I", 2, VOCABULARY, 24)) + 1
    path.write_bytes(raw[:place] + struct.pack("<2I", 2**32 - 1, 2**32 - 1) + raw[place + 8 :])
    with pytest.raises(ValueError, match=r"must have .* bytes for F32"):
        SpeechSeq2Seq.from_pretrained(tmp_path)


def test_other_files_that_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(b"PK")
    for path in (tmp_path, tmp_path / "tiny.pt"):
        with pytest.raises(ValueError, match=r"checkpoint of openai-whisper, .* convert it by .*convert_openai_to_hf"):
            SpeechSeq2Seq.from_pretrained(path)

    def refused(name: str, entry: str, value: Any, message: str) -> None:
        other = tmp_path / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        path = other / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {entry: value}), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            SpeechSeq2Seq.from_pretrained(other)

    refused("preprocessor_config.json", "feature_size", 128, "feature_size must be 80; got 128")
    refused("preprocessor_config.json", "hop_length", 80, "hop_length must be 160; got 80")
    refused("generation_config.json", "alignment_heads", [[2, 0]], "alignment_heads must be pairs of a layer below 2")
    refused("generation_config.json", "alignment_heads", [0, 1], "alignment_heads must be pairs")
    refused("generation_config.json", "suppress_tokens", [40], "suppress_tokens must be of tokens from 0 to 39")
    refused("config.json", "scale_embedding", True, "scale_embedding must be False")
    refused("config.json", "activation_function", "swish", "activation_function must be")
    refused("config.json", "model_type", "bart", "model_type must be 'whisper'")


def test_arguments(model: SpeechSeq2Seq) -> None:
    features = _features(tiny_speech.config())
    encoded = model.encode(features)
    for wrong in (features[0], features[:, :, :-1], features[:, :79], np.concatenate([features] * 2, 2), features[:0]):
        with pytest.raises(ValueError, match=r"^SpeechSeq2Seq\.encode: features must be \[B, 80, T\]"):
            model.encode(wrong)
    with pytest.raises(TypeError, match="must be an array of a float dtype; got "):
        model.encode(features.astype(np.int64))
    with pytest.raises(ValueError, match="sequences must be from 0 to 2; got 3"):
        model.decoder(encoded, [3])
    with pytest.raises(TypeError, match="sequences must be integers"):
        model.decoder(encoded, [])
    other = model.astype("float64")
    for call in (lambda: other.decoder(encoded, [0]), lambda: other.alignment(encoded, 0, [3])):
        with pytest.raises(ValueError, match="encoded must be from encode of this model"):
            call()
    decoder = model.decoder(encoded, [0, 1])
    with pytest.raises(ValueError, match=r"tokens must be an array for each sequence, 2; got 1"):
        decoder.step([[1]])
    with pytest.raises(ValueError, match="must have a token; got none at 1"):
        decoder.step([[1], []])
    with pytest.raises(ValueError, match="from 0 to 39; got 40 to 40 at 1"):
        decoder.step([[1], [40]])
    with pytest.raises(ValueError, match="at most 16 tokens; got 17"):
        decoder.step([[1], [1] * 17])
    with pytest.raises(ValueError, match="indices must be from 0 to 1; got -1"):
        decoder.select([-1])
    assert decoder.lengths.tolist() == [0, 0]
    with pytest.raises(ValueError, match="window must be"):
        model.alignment(encoded, 3, [3])
    with pytest.raises(ValueError, match="tokens must be at most 16; got 17"):
        model.alignment(encoded, 0, [3] * 17)
    with pytest.raises(ValueError, match="heads must be pairs of a layer below 2"):
        model.alignment(encoded, 0, [3], [(0, 3)])
