"""Decoders that have transformers as their only oracle: tokens, tensors, and every entry of config.json.

Skipped without transformers and torch. Their logits are in test_decoders_against_transformers.py.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generators
from decoder_logits import logits, opened
from test_decoders_against_transformers import BOUND, CLASSES, save
from tiny_generators import FURTHER, VOCABULARY

from mha_native.models.architecture.family import GENERATION
from mha_native.models.architecture.open import open_model
from mha_native.models.files.folder import FolderSource
from mha_native.models.generation.engine import Caches, GenerationOptions, generate_steps
from mha_native.models.generation.sampling import TokenChoice

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
safetensors = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.filterwarnings("ignore")

_RNG = np.random.default_rng(8)
PROMPTS = [_RNG.integers(0, VOCABULARY, length).tolist() for length in (6, 1, 11)]
NEW = 12


def _greedy(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    options = GenerationOptions.checked("test", {"max_new_tokens": NEW}, model.dtype)
    choices = [
        TokenChoice("test", options.sampling, list(prompt), VOCABULARY, NEW, frozenset(), i)
        for i, prompt in enumerate(prompts)
    ]
    longest = max(map(len, prompts))
    caches = Caches(model.cached(None), len(prompts), longest, longest + NEW - 1)
    for _ in generate_steps("test", caches, choices, lambda statistics: None):
        pass
    return [choice.new_tokens for choice in choices]


@pytest.mark.parametrize("model_type", FURTHER)
def test_greedy_tokens(model_type: str, tmp_path: Path) -> None:
    # Texts outgrow the windows, and prompts of different lengths share the steps.
    oracle = save(tmp_path, model_type)
    model = opened(tmp_path)
    found = _greedy(model, PROMPTS)
    for prompt, new in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            rows = oracle(input_ids=torch.tensor([prompt + new])).logits[0].numpy()
        assert rows.argmax(-1)[len(prompt) - 1 : -1].tolist() == new
        assert _greedy(model, [prompt]) == [new]


@pytest.mark.parametrize("model_type", FURTHER)
def test_token_by_token(model_type: str, tmp_path: Path) -> None:
    # The rows over caches have the bits of the rows of the whole text.
    save(tmp_path, model_type)
    model = opened(tmp_path)
    tokens = PROMPTS[0] + PROMPTS[2]
    stack = model.stacks[0]
    caches = stack.layers.new_caches(1, len(tokens))
    rows = []
    for begin, end in ((0, 5), (5, 6), (6, 13), *((i, i + 1) for i in range(13, len(tokens)))):
        x = stack.front_end(np.array(tokens[begin:end]), np.array([0, end - begin]), None, places=np.arange(begin, end))
        rows.append(stack.run(x[None], caches=caches)[0])
    whole = model.hidden_states(np.array(tokens), np.array([0, len(tokens)]), None)
    np.testing.assert_array_equal(np.concatenate(rows), whole)


@pytest.mark.parametrize("model_type", FURTHER)
def test_every_tensor(model_type: str, tmp_path: Path) -> None:
    save(tmp_path, model_type)
    path = tmp_path / "model.safetensors"
    weights = safetensors.load_file(path)
    for name, whole in weights.items():
        others = {other: tensor for other, tensor in weights.items() if other != name}
        for damaged, words in ((None, "missing"), (np.concatenate([whole, whole[:1]]), "wrong shape")):
            safetensors.save_file(others if damaged is None else others | {name: damaged}, path)
            with pytest.raises(ValueError, match=words):
                opened(tmp_path)


def _described(directory: Path, settings: dict[str, Any]) -> Any:
    (directory / "config.json").write_text(json.dumps(settings))
    return open_model(FolderSource(directory), GENERATION).config


def _whole(model_type: str, settings: dict[str, Any]) -> dict[str, Any]:
    """config.json with every entry that transformers has."""
    kind = getattr(transformers, CLASSES[model_type] + "Config")
    values: dict[str, Any] = kind(**{name: value for name, value in settings.items() if name != "model_type"}).to_dict()
    return values


@pytest.mark.parametrize("model_type", FURTHER)
def test_entries_that_can_be_left_out(model_type: str, tmp_path: Path) -> None:
    # The defaults of transformers, which writes all entries.
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    tiny = tiny_generators.config(model_type)
    short = {name: tiny[name] for name in ("model_type", "max_position_embeddings", *sizes)}
    short |= {"num_attention_heads": 32, "hidden_size": 256}  # some have 32 heads of keys by default
    assert _described(tmp_path, short) == _described(tmp_path, _whole(model_type, short))


def _of_all(names: list[str], *changes: dict[str, Any]) -> list[Any]:
    return [(name, change) for name in names for change in changes]


REFUSED = [
    *_of_all(FURTHER, {"quantization_config": {"quant_method": "gptq"}}, {"auto_map": {"AutoModel": "own.Own"}}),
    *_of_all(["cohere"], {"use_qk_norm": True}, {"logit_scale": None}),
    *_of_all(["stablelm"], {"qk_layernorm": True}, {"head_dim": 7}),
    *_of_all(["gpt_neox"], {"partial_rotary_factor": 0.5}, {"rope_theta": 10.0}, {"head_dim": 7}),
    *_of_all(["phi3"], *({"rope_scaling": {"type": kind, "factor": 2.0}} for kind in ("yarn", "su", "linear"))),
    *_of_all(["granite"], {"residual_multiplier": 0}, {"logits_scaling": -1.0}, {"attention_multiplier": None}),
    *_of_all(["smollm3"], {"no_rope_layers": [1, 0]}, {"no_rope_layers": [1, 0, 2, 1]}, {"no_rope_layer_interval": 0}),
    *_of_all(["cohere2"], {"sliding_window": None}, {"sliding_window_pattern": 0}),
    *_of_all(["exaone4"], {"sliding_window_pattern": "LLLG"}),
    *_of_all(["olmo3"], {"rope_theta": 10000.0}),
    *_of_all(["llama", "olmo2", "granite", "glm"], {"partial_rotary_factor": 1.4}),
]


@pytest.mark.parametrize(("model_type", "changes"), REFUSED, ids=str)
def test_unsupported_entries(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))) as caught:
        _described(tmp_path, tiny_generators.config(model_type, **changes))
    assert len(str(caught.value).splitlines()) == 1


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_LONGROPE = {"type": "longrope", "long_factor": [2.0, 3.0], "short_factor": [1.0, 1.5]}
OLDER: list[tuple[str, dict[str, Any]]] = [
    *_of_all(FURTHER, {}),
    *_of_all([name for name in FURTHER if name not in ("olmo3", "gpt_neox")], {"rope_theta": 100.0}),
    ("gpt_neox", {"rotary_emb_base": 100, "rotary_pct": 1.0}),
    ("olmo3", {"rope_theta": 500000, "rope_scaling": _YARN}),
    ("phi3", {"original_max_position_embeddings": 8, "rope_theta": 1e4, "rope_scaling": _LONGROPE}),
]


@pytest.mark.parametrize(("model_type", "entries"), OLDER, ids=str)
def test_older_entries(model_type: str, entries: dict[str, Any], tmp_path: Path) -> None:
    # The files that models are published with have no rope_parameters.
    save(tmp_path, model_type)
    is_tied = json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    settings = {**tiny_generators.config(model_type), "tie_word_embeddings": is_tied, **entries}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "bos_token_id": None, "pad_token_id": None}))
    (actual,) = logits(opened(tmp_path), [PROMPTS[2]])
    expected = _logits_there(tmp_path, PROMPTS[2])
    assert np.abs(actual - expected).max() <= BOUND * np.abs(expected).max()


def test_the_text_model_of_gemma3_with_images(tmp_path: Path) -> None:
    text = tiny_generators.config("gemma3_text")
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    oracle = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.3 * noise if parameter.dim() == 1 else noise / np.sqrt(tiny_generators.WIDTH))
        oracle.save_pretrained(tmp_path)
        expected = oracle.double()(input_ids=torch.tensor([PROMPTS[2]])).logits[0].numpy()
    (actual,) = logits(opened(tmp_path), [PROMPTS[2]])
    assert np.abs(actual - expected).max() <= BOUND * np.abs(expected).max()
    path = tmp_path / "model.safetensors"
    newer = {
        name.replace("language_model.model.", "model.language_model."): tensor
        for name, tensor in safetensors.load_file(path).items()
    }
    safetensors.save_file(newer, path)
    np.testing.assert_array_equal(logits(opened(tmp_path), [PROMPTS[2]])[0], actual)
    whole = json.loads((tmp_path / "config.json").read_text())
    for changes, word in (
        ({"text_config": None}, "text_config"),
        ({"text_config": whole["text_config"] | {"model_type": "llama"}}, "model_type"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ):
        with pytest.raises(ValueError, match=word):
            _described(tmp_path, whole | changes)


ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    0.5,
    0.25,
    1.0,
    1e4,
    "x",
    "silu",
    "gelu",
    [],
    {},
    [1],
    [1, 0, 1, 1],
]
ORDINARY, ALL = 20, 1 << 30


@pytest.mark.parametrize("count", [ORDINARY, pytest.param(ALL, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("model_type", FURTHER)
def test_every_entry(model_type: str, count: int, tmp_path: Path) -> None:
    """With another value of an entry a model is refused, or computes the same as transformers."""
    save(tmp_path, model_type)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text()) | {
        name: value for name, value in tiny_generators.config(model_type).items() if name != "hidden_act"
    }
    # Where the files of a tied model have a head of its own, transformers takes that; here the word table counts.
    whole.pop("tie_word_embeddings")
    damaged = []
    for name, value in whole.items():
        damaged += [
            (f"{name}={odd!r}", {**whole, name: odd}) for odd in ODD if odd != value or type(odd) is not type(value)
        ]
        if isinstance(value, dict):
            for inner in value:
                for odd in ODD:
                    other = copy.deepcopy(whole)
                    other[name][inner] = odd
                    damaged.append((f"{name}.{inner}={odd!r}", other))
    random.Random(model_type).shuffle(damaged)
    tokens, compared, differing = PROMPTS[2], 0, []
    for label, settings in damaged[:count]:
        path.write_text(json.dumps(settings))
        try:
            (actual,) = logits(opened(tmp_path), [tokens])
        except ValueError:
            continue
        expected = _logits_there(tmp_path, tokens)
        if expected is not None:
            compared += 1
            bound = BOUND * max(np.abs(expected).max(), 1)
            if expected.shape != actual.shape or not np.abs(actual - expected).max() <= bound:
                differing.append(label)
    assert not differing
    assert compared


def _logits_there(directory: Path, tokens: list[int]) -> Any:
    """The logits of transformers, or None if it refuses the files."""
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            directory, **options, output_loading_info=True
        )
        if report["missing_keys"] or report["mismatched_keys"]:
            return None
        with torch.no_grad():
            return model.eval()(input_ids=torch.tensor([tokens])).logits[0].numpy()
    except Exception:
        return None
