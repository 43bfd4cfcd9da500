"""Models of transformers over this library's attention: the results of their own, whatever is masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import tiny_transformers  # noqa: E402
from tiny_transformers import DECODERS, ENCODERS, SEQ2SEQ  # noqa: E402
from transformers import masking_utils  # noqa: E402

from mha_native import scaled_dot_product_attention  # noqa: E402
from mha_native.interop.transformers import attention as attention_module  # noqa: E402
from mha_native.interop.transformers import register  # noqa: E402
from mha_native.interop.transformers.attention import attention  # noqa: E402
from mha_native.interop.transformers.masks import StructuredMask, mask, reach_of  # noqa: E402

PADDINGS = ("none", "right", "left")
# Largest difference of outputs of size 1, of which float32 rounds each product differently.
CLOSE = 3e-6

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The masks and score options of each call of attention that models make through what is registered."""
    register()
    made: list[dict[str, Any]] = []

    def watched(*tensors: Any, **options: Any) -> Any:
        made.append({name: x for name, x in options.items() if name not in ("scale", "out")})
        return scaled_dot_product_attention(*tensors, **options)

    monkeypatch.setattr(attention_module, "scaled_dot_product_attention", watched)
    return made


def _outputs(model: Any, implementation: str, inputs: dict[str, Any]) -> Any:
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        out = model(**inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def _assert_equal_outputs(model: Any, inputs: dict[str, Any], rows: Any) -> None:
    ours, theirs = (_outputs(model, name, inputs)[rows] for name in ("mha_native", "eager"))
    assert theirs.abs().max() > 0.1
    assert ((ours - theirs).abs() <= CLOSE * theirs.abs().clamp(min=1)).all()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])
def test_outputs_are_those_of_eager(family: str, padding: str, calls: list[dict[str, Any]]) -> None:
    inputs = tiny_transformers.tokens(family, padding)
    _assert_equal_outputs(tiny_transformers.model(family), inputs, inputs["attention_mask"].bool())
    assert len(calls) == 2  # layers


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("family", SEQ2SEQ)
def test_outputs_of_encoder_and_decoder(family: str, padding: str) -> None:
    inputs = tiny_transformers.tokens(family, padding)
    inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)[:, :5].clamp(min=3)
    _assert_equal_outputs(tiny_transformers.model(family), inputs, slice(None))


GENERATING = [
    pytest.param(family, marks=() if family in ("Llama", "Gemma2", "GptOss", "T5") else pytest.mark.exhaustive)
    for family in (*DECODERS, *SEQ2SEQ)
]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("family", GENERATING)
def test_generate_gives_equal_tokens(family: str, padding: str, cache: str) -> None:
    if padding == "right" and family in DECODERS:
        pytest.skip("decoders go on behind the last token, which must not be padding")
    model = tiny_transformers.model(family)
    inputs = tiny_transformers.tokens(family, padding)
    tokens = {}
    for name in ("mha_native", "eager"):
        model.set_attn_implementation(name)
        tokens[name] = model.generate(
            **inputs, max_new_tokens=12, do_sample=False, cache_implementation=cache, pad_token_id=0
        )
    assert torch.equal(tokens["mha_native"], tokens["eager"])


def _option_names(calls: list[dict[str, Any]]) -> list[str]:
    return [" ".join(sorted(call)) for call in calls]


# The options of a layer of each kind: with padding on neither side, on the right and on the left.
STRUCTURES = {
    "Bert": [("", "key_lengths", "key_mask")],
    "Llama": [("is_causal", "is_causal key_lengths", "is_causal key_mask")],
    "Mistral": [("window", "key_lengths window", "key_mask window")],
    "Gemma2": [
        ("softcap window", "key_lengths softcap window", "key_mask softcap window"),
        ("is_causal softcap", "is_causal key_lengths softcap", "is_causal key_mask softcap"),
    ],
    "T5": [("attn_mask", "attn_mask key_lengths", "attn_mask key_mask"), 3 * ("attn_mask is_causal",)],
    "ModernBert": [("", "key_lengths", "key_mask"), ("window", "key_lengths window", "key_mask window")],
}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("family", STRUCTURES)
def test_masks_with_a_structure_are_not_stored(family: str, padding: str, calls: list[dict[str, Any]]) -> None:
    inputs = tiny_transformers.tokens(family, padding)
    if family in SEQ2SEQ:
        inputs["decoder_input_ids"] = inputs["input_ids"].clamp(min=3)
    _outputs(tiny_transformers.model(family), "mha_native", inputs)
    expected = [names[PADDINGS.index(padding)] for names in STRUCTURES[family]]
    assert sorted(set(_option_names(calls))) == sorted(expected)
    for call in calls:
        if "attn_mask" in call:
            assert call["attn_mask"].shape == (1, 4, 13, 13)  # a bias, the same for both texts


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_without_padding_have_no_mask(cache: str, calls: list[dict[str, Any]]) -> None:
    model = tiny_transformers.model("Llama")
    model.set_attn_implementation("mha_native")
    inputs = tiny_transformers.tokens("Llama", "none")
    model.generate(**inputs, max_new_tokens=4, do_sample=False, cache_implementation=cache, pad_token_id=0)
    bounded = 2 * ["is_causal query_offset"]  # a static cache has room behind the last token, but for the last step
    steps = 6 * [""] if cache == "dynamic" else [*bounded, *bounded, "", ""]
    assert _option_names(calls) == ["is_causal", "is_causal", *steps]


CAUSAL, FULL = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
FUNCTIONS = {
    "causal": (CAUSAL, (-1, 0)),
    "full": (FULL, (-1, -1)),
    "window": (masking_utils.sliding_window_causal_mask_function(3), (2, 0)),
    "window of both sides": (masking_utils.sliding_window_bidirectional_mask_function(2), (2, 2)),
    "chunks": (masking_utils.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.int64)), None),
    "either": (masking_utils.or_masks(CAUSAL, FULL), None),
    "own": (lambda b, h, q, k: k <= q, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_mask_function_lets_a_query_see(name: str) -> None:
    function, reach = FUNCTIONS[name]
    assert reach_of(function) == reach


@pytest.mark.parametrize("padding", [*PADDINGS, "both", "short", "all"])
@pytest.mark.parametrize(
    ("queries", "keys", "q_offset", "kv_offset"),
    [(7, 7, 0, 0), (1, 9, 8, 0), (3, 9, 6, 0), (3, 12, 2, 0), (2, 5, 8, 5)],
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_mean_what_the_dense_mask_means(
    name: str, queries: int, keys: int, q_offset: int, kv_offset: int, padding: str
) -> None:
    length = kv_offset + keys
    is_token = torch.ones(2, length - 2 if padding == "short" else length, dtype=torch.bool)
    if padding in ("right", "both"):
        is_token[1, -2:] = False
    if padding in ("left", "both"):
        is_token[1, : kv_offset + 1] = False
    if padding == "all":
        is_token[1] = False
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": FUNCTIONS[name][0],
        "attention_mask": None if padding == "none" else is_token,
        "allow_is_causal_skip": False,
    }
    dense = masking_utils.sdpa_mask(**arguments)
    ours = mask(**arguments)
    assert type(ours) is StructuredMask
    assert (ours.options is not None) == (FUNCTIONS[name][1] is not None)
    query, key = torch.randn(2, 4, queries, 8), torch.randn(2, 4, keys, 8)
    layer = torch.nn.Module()
    out, _ = attention(layer, query, key, key, ours)
    expected, _ = attention(layer, query, key, key, dense)
    assert torch.allclose(out, expected, rtol=0, atol=CLOSE)
    assert torch.equal(ours.dense(), dense)


# What models do to a mask of numbers that are added, and none to one of booleans.
MISREADINGS: dict[str, Callable[[Any], Any]] = {
    "add": lambda mask: torch.zeros(2, 4, 5, 5) + mask,
    "add in place": lambda mask: torch.zeros(2, 4, 5, 5).add_(mask),
    "convert": lambda mask: mask.to(torch.float32),
    "convert to float": lambda mask: mask.float(),
    "multiply": lambda mask: (1 - mask) * -1e4,
    "compare": lambda mask: mask == 0,
    "index": lambda mask: mask[:, :, :, :3],
    "set": lambda mask: mask.__setitem__((..., 1), False),
    "join with numbers": lambda mask: torch.cat([mask, torch.zeros(2, 1, 5, 5)], -1),
    "join and add": lambda mask: torch.cat([mask, mask], -1) + torch.zeros(5, 10),
}


@pytest.mark.parametrize("function", ["causal", "chunks"])
@pytest.mark.parametrize("name", MISREADINGS)
def test_a_mask_in_the_wrong_hands_is_refused(name: str, function: str) -> None:
    ours = mask(2, 5, 5, mask_function=FUNCTIONS[function][0], config=transformers.BertConfig())
    with pytest.raises(RuntimeError, match=r"^mha_native: a model of type 'bert' applies .* to its boolean attention"):
        MISREADINGS[name](ours)


def test_a_mask_is_a_condition_of_right_operations() -> None:
    ours = mask(2, 5, 5)
    assert type(ours) is StructuredMask
    assert (ours.shape, ours.dtype, ours.ndim, ours.size(-1)) == ((2, 1, 5, 5), torch.bool, 4, 5)
    assert ours.options == {"is_causal": True}
    assert ours.contiguous() is ours
    assert ours.to("cpu", non_blocking=True) is ours
    joined = torch.cat([ours, ours], -1)
    assert (type(joined), joined.sizes) == (StructuredMask, (2, 5, 10))
    query, zeros = torch.randn(2, 4, 5, 8), torch.zeros(2, 1, 5, 5)
    dense = torch.ones(2, 1, 5, 5).tril().bool()
    assert repr(ours) == repr(dense)
    assert torch.equal(joined.dense(), torch.cat([dense, dense], -1))
    assert torch.equal(torch.where(ours, zeros, 1.0), (~dense).float())
    out = torch.nn.functional.scaled_dot_product_attention(query, query, query, ours)
    expected, _ = attention(torch.nn.Module(), query, query, query, dense)
    assert torch.allclose(out.transpose(1, 2), expected, rtol=0, atol=CLOSE)
    assert torch.equal(attention(torch.nn.Module(), query, query, query, ours)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 4, 5, 8).to(dtype), torch.randn(2, 2, 7, 8).to(dtype)
    given: dict[str, Any] = {
        "scaling": 0.5,
        "softcap": 3.0,
        "s_aux": torch.nn.Parameter(torch.randn(4).to(dtype)),
        "position_bias": torch.randn(1, 4, 5, 7),
        "attention_mask": torch.rand(2, 1, 5, 7) < 0.7,
    }
    with torch.no_grad():
        out, weights = attention(torch.nn.Module(), query, key, key, **given)
    assert (out.shape, out.dtype, weights) == ((2, 5, 4, 8), dtype, None)
    exact = {name: x.detach().double() if name in ("s_aux", "position_bias") else x for name, x in given.items()}
    exact["position_bias"] = given["position_bias"].to(dtype).double()
    expected, _ = attention(torch.nn.Module(), query.double(), key.double(), key.double(), **exact)
    assert torch.allclose(out.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_dropout_follows_the_generator_of_torch() -> None:
    query = torch.randn(2, 4, 5, 8)
    torch.manual_seed(7)
    seeds = [int(torch.randint(2**62, ())) for _ in range(2)]
    torch.manual_seed(7)
    for seed in seeds:
        out, _ = attention(torch.nn.Module(), query, query, query, is_causal=False, dropout=0.3)
        expected = scaled_dot_product_attention(query, query, query, dropout_p=0.3, dropout_seed=seed)
        assert torch.equal(out.transpose(1, 2), expected)


def test_what_is_refused() -> None:
    query = torch.randn(2, 4, 5, 8)
    layer = torch.nn.Module()
    with pytest.raises(RuntimeError, match="paged caches are not read"):
        attention(layer, query, query, query, cache=object())
    with pytest.raises(RuntimeError, match="the argument block_indices is not computed; use attn_implementation"):
        attention(layer, query, query, query, indices=None, block_indices=torch.zeros(2, 5, 1))


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS, *SEQ2SEQ])
def test_gradients_of_all_parameters_are_those_of_eager(family: str) -> None:
    # The experts of GPT-OSS have no float64.
    model, inputs, rows = tiny_transformers.in_training(family, torch.float32 if family == "GptOss" else torch.float64)
    found = {}
    for name in ("mha_native", "eager"):
        model.set_attn_implementation(name)
        model.zero_grad()
        tiny_transformers.loss(model, inputs, rows).backward()
        found[name] = {key: x.grad for key, x in model.named_parameters() if x.grad is not None}
    assert found["mha_native"].keys() == found["eager"].keys()
    largest = max(x.abs().max() for x in found["eager"].values())
    for key, expected in found["eager"].items():  # some of which have a softmax in float32
        close = CLOSE * expected.abs().max() + CLOSE / 100 * largest
        assert ((found["mha_native"][key] - expected).abs() <= close).all(), key


@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_training_has_the_losses_of_eager(family: str) -> None:
    losses = {}
    for name in ("mha_native", "eager"):
        model, inputs, rows = tiny_transformers.in_training(family, torch.float32)
        model.set_attn_implementation(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        losses[name] = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = tiny_transformers.loss(model, inputs, rows)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses["eager"][-1] < 0.9 * losses["eager"][0]
    assert losses["mha_native"] == pytest.approx(losses["eager"], rel=1e-4)


def test_autocast_and_checkpoints_in_training() -> None:
    model, inputs, rows = tiny_transformers.in_training("Llama", torch.float32)
    found = {}
    for name in ("mha_native", "eager"):
        model.set_attn_implementation(name)
        model.zero_grad()
        model.gradient_checkpointing_enable() if name == "mha_native" else model.gradient_checkpointing_disable()
        with torch.autocast("cpu", torch.bfloat16):
            loss = tiny_transformers.loss(model, inputs, rows)
        loss.backward()
        found[name] = model.model.embed_tokens.weight.grad
    difference = found["mha_native"] - found["eager"]
    assert difference.norm() < 0.02 * found["eager"].norm()  # rounding to 8 bits in every step


@pytest.mark.exhaustive
def test_a_compiled_model_calls_what_it_cannot_trace() -> None:
    model = tiny_transformers.model("Llama")
    inputs = tiny_transformers.tokens("Llama", "left")
    expected = _outputs(model, "mha_native", inputs)
    model.set_attn_implementation("mha_native")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        out = compiled(**inputs).logits
    real = inputs["attention_mask"].bool()
    assert torch.allclose(out[real], expected[real], rtol=0, atol=CLOSE * expected.abs().max())


def test_another_name() -> None:
    register("attention of my own")
    model = tiny_transformers.model("Llama")
    inputs = tiny_transformers.tokens("Llama", "right")
    assert torch.equal(_outputs(model, "attention of my own", inputs), _outputs(model, "mha_native", inputs))


@pytest.mark.parametrize("name", [None, 3, "", "eager"])
def test_names_that_nobody_finds_are_refused(name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^register: name must"):
        register(name)
