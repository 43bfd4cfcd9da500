"""Models of transformers whose layers are computed here: the results of their own layers, and when these compute."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import tiny_transformers  # noqa: E402
from tiny_transformers import ENCODERS, OWN_ATTENTION  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from mha_native.interop.torch import Acceleration, accelerate, scaled_dot_product_attention  # noqa: E402
from mha_native.interop.transformers import attention as attention_module  # noqa: E402
from mha_native.interop.transformers import layers  # noqa: E402
from mha_native.interop.transformers.models import layers_of  # noqa: E402

PADDINGS = ("none", "right", "left")
DECODERS = ("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3Text")
FAMILIES = [*(name for name in ENCODERS if name != "Albert"), *OWN_ATTENTION, *DECODERS]
# Largest difference of outputs of size 1, of which float32 rounds each product of two layers differently.
CLOSE = 1e-5

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call of a layer whether this library has computed it."""
    made: list[bool] = []
    computed = layers.LayerForward._computed

    def watched(self: Any, given: dict[str, Any]) -> Any:
        out = computed(self, given)
        made.append(out is not None)
        return out

    monkeypatch.setattr(layers.LayerForward, "_computed", watched)
    return made


def _both(family: str) -> tuple[Any, Any]:
    """A model with layers of this library, and the same with those of torch."""
    theirs = tiny_transformers.model(family)
    ours = copy.deepcopy(theirs)
    assert len(accelerate(ours).replaced) == 2
    return ours, theirs


def _out(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        out = model(**inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def _assert_close(ours: Any, theirs: Any, close: float = CLOSE) -> None:
    assert theirs.abs().max() > 0.1
    assert ((ours - theirs).abs() <= close * theirs.abs().clamp(min=1)).all()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_those_of_the_layers_of_torch(family: str, padding: str, calls: list[bool]) -> None:
    ours, theirs = _both(family)
    inputs = tiny_transformers.tokens(family, padding)
    real = inputs["attention_mask"].bool()
    _assert_close(_out(ours, **inputs)[real], _out(theirs, **inputs)[real])
    assert calls == [True, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_other_dtypes(family: str, dtype: Any, calls: list[bool]) -> None:
    ours, theirs = _both(family)
    inputs = tiny_transformers.tokens(family, "left")
    real = inputs["attention_mask"].bool()
    expected = _out(theirs.double(), **inputs)[real]
    out = _out(ours.to(dtype), **inputs)[real]  # which moves the weights to other tensors
    assert out.dtype == dtype
    _assert_close(out.double(), expected, max(CLOSE / 10, 16 * torch.finfo(dtype).eps))
    assert calls == [True, True]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("family", DECODERS)
def test_generate_gives_equal_tokens(family: str, padding: str, beams: int, calls: list[bool]) -> None:
    inputs = tiny_transformers.tokens(family, padding)
    ours, theirs = (
        model.generate(**inputs, max_new_tokens=12, do_sample=False, num_beams=beams, pad_token_id=0)
        for model in _both(family)
    )
    assert torch.equal(ours, theirs)
    assert calls == 24 * [True]


def test_a_cache_that_grows_step_by_step() -> None:
    ours, theirs = _both("Llama")
    tokens = torch.randint(3, tiny_transformers.VOCABULARY, (2, 120))
    expected, cache = _out(theirs, input_ids=tokens), DynamicCache()
    for i in range(120):
        _assert_close(_out(ours, input_ids=tokens[:, i : i + 1], past_key_values=cache)[:, 0], expected[:, i])
    assert cache.get_seq_length() == 120


@pytest.mark.parametrize("family", ["Llama", "Gemma3Text"])
def test_what_is_done_with_caches(family: str, calls: list[bool]) -> None:
    models = _both(family)
    caches = [DynamicCache(config=model.config) for model in models]
    tokens = torch.randint(3, tiny_transformers.VOCABULARY, (3, 20))

    def step(begin: int, end: int, batch: Any = slice(None)) -> None:
        ours, theirs = (
            _out(model, input_ids=tokens[batch, begin:end], past_key_values=cache)
            for model, cache in zip(models, caches, strict=True)
        )
        _assert_close(ours, theirs)

    step(0, 4)
    step(4, 5)  # within the window of Gemma 3
    caches[0] = copy.deepcopy(caches[0])
    for cache in caches:
        cache.crop(-2)
    step(3, 5)
    order = torch.tensor([2, 0, 0])
    for cache in caches:
        cache.reorder_cache(order)
    tokens = tokens[order]
    step(5, 9)  # several tokens behind others
    step(9, 10)
    for cache in caches:
        cache.batch_select_indices(torch.tensor([1]))
    step(10, 12, slice(1, 2))
    for cache in caches:
        cache.batch_repeat_interleave(2)
    step(12, 13, slice(1, 3))
    assert all(calls)
    keys = [cache.layers[0].keys[:, :, -5:] for cache in caches]
    _assert_close(*keys)
    for cache in caches:
        cache.reset()
    step(0, 7)


def test_a_cache_passes_from_one_kind_of_layer_to_the_other(calls: list[bool]) -> None:
    ours, theirs = _both("Llama")
    tokens = torch.randint(3, tiny_transformers.VOCABULARY, (2, 12))
    expected, cache = _out(theirs, input_ids=tokens), DynamicCache()
    models = {0: theirs, 4: ours, 6: theirs, 7: ours, 9: theirs, 10: ours}
    for begin, end in zip(models, [*list(models)[1:], 12], strict=True):
        out = _out(models[begin], input_ids=tokens[:, begin:end], past_key_values=cache)
        _assert_close(out, expected[:, begin:end])
    assert calls == 6 * [True]


def test_a_cache_of_another_kind_is_read_by_the_layers_of_torch(calls: list[bool]) -> None:
    inputs = tiny_transformers.tokens("Llama", "left")
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    ours, theirs = (model.generate(**inputs, **options) for model in _both("Llama"))
    assert torch.equal(ours, theirs)
    assert not any(calls)


def test_a_window_of_which_older_tokens_are_gone_is_read_by_the_layers_of_torch(calls: list[bool]) -> None:
    ours, theirs = _both("Mistral")
    tokens = torch.randint(3, tiny_transformers.VOCABULARY, (2, 12))
    cache = DynamicCache(config=theirs.config)
    _out(theirs, input_ids=tokens[:, :9], past_key_values=cache)
    expected = _out(theirs, input_ids=tokens)[:, 9:]
    _assert_close(_out(ours, input_ids=tokens[:, 9:], past_key_values=cache), expected)
    assert not any(calls)


def _change_in_place(model: Any) -> None:
    for weight in model.parameters():
        weight.mul_(1.5)


def _load(model: Any) -> None:
    model.load_state_dict({name: 1.5 * x for name, x in model.state_dict().items()})


def _replace_one(model: Any) -> None:
    linear = model.encoder.layer[1].output.dense
    linear.weight = torch.nn.Parameter(2 * linear.weight)


def _move(model: Any) -> None:
    for weight in model.parameters():
        weight.data = weight.data * 1.5


@pytest.mark.parametrize("change", [_change_in_place, _load, _replace_one, _move])
def test_weights_that_change_later_are_noticed(change: Any, calls: list[bool]) -> None:
    models, inputs = _both("Bert"), tiny_transformers.tokens("Bert", "none")
    before = _out(models[0], **inputs)
    with torch.no_grad():
        for model in models:
            change(model)
    ours, theirs = (_out(model, **inputs) for model in models)
    assert not torch.allclose(before, theirs, atol=0.01)
    _assert_close(ours, theirs)
    assert all(calls)


class _Adapter(torch.nn.Module):
    """Another linear map in place of one, as adapters put it there."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Any) -> Any:
        return 2 * self.base(x)


def test_a_part_that_is_replaced_later_is_noticed(calls: list[bool]) -> None:
    models, inputs = _both("Bert"), tiny_transformers.tokens("Bert", "right")
    for model in models:
        output = model.encoder.layer[0].output
        output.dense = _Adapter(output.dense)
    for _ in range(2):
        _assert_close(_out(models[0], **inputs), _out(models[1], **inputs))
    assert calls == [False, True, False, True]
    output = models[0].encoder.layer[0].output
    output.dense = output.dense.base
    _out(models[0], **inputs)
    assert calls[4:] == [True, True]


def test_hooks_on_parts_see_what_they_would(calls: list[bool]) -> None:
    model, inputs = _both("Bert")[0], tiny_transformers.tokens("Bert", "none")
    seen: list[Any] = []
    handle = model.encoder.layer[0].attention.register_forward_hook(lambda *arguments: seen.append(arguments))
    on_layer = model.encoder.layer[1].register_forward_hook(lambda *arguments: seen.append(arguments))
    _out(model, **inputs)
    assert (len(seen), calls) == (2, [False, True])
    handle.remove()
    on_layer.remove()
    _out(model, **inputs)
    assert calls[2:] == [True, True]


def test_hidden_states_are_given(calls: list[bool]) -> None:
    (ours, theirs), inputs = _both("Llama"), tiny_transformers.tokens("Llama", "none")
    with torch.no_grad():
        states = [model(**inputs, output_hidden_states=True).hidden_states for model in (ours, theirs)]
    assert len(states[0]) == 3
    for mine, other in zip(*states, strict=True):
        _assert_close(mine, other)
    _out(ours, **inputs)
    assert all(calls)


def test_attention_weights_are_those_of_eager() -> None:
    (ours, theirs), inputs = _both("Bert"), tiny_transformers.tokens("Bert", "none")
    for model in (ours, theirs):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = [model(**inputs, output_attentions=True).attentions for model in (ours, theirs)]
    assert all(map(torch.equal, *weights))


def test_another_implementation_of_attention_turns_it_off(calls: list[bool]) -> None:
    ours, theirs = _both("Llama")
    inputs = tiny_transformers.tokens("Llama", "left")
    ours.set_attn_implementation("sdpa")
    assert torch.equal(_out(ours, **inputs), _out(theirs, **inputs))
    assert not any(calls)


@pytest.mark.parametrize("family", ["Bert", "Llama", "Gemma2"])
def test_training_is_as_before(family: str, calls: list[bool]) -> None:
    inputs, gradients = tiny_transformers.tokens(family, "right"), []
    for model in _both(family):
        model.train()
        torch.manual_seed(1)  # of dropout
        out = model(**inputs)
        (out.logits if hasattr(out, "logits") else out.last_hidden_state).square().sum().backward()
        gradients.append([x.grad for x in model.parameters() if x.grad is not None])
    assert len(gradients[0]) > 10
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert not any(calls)


def test_gradients_of_a_model_in_evaluation_mode_are_as_before_and_warned_of(calls: list[bool]) -> None:
    model = _both("Bert")[0]
    inputs = tiny_transformers.tokens("Bert", "none")
    with pytest.warns(UserWarning, match=r"gradients are recorded.*torch\.no_grad\(\)"):
        out = model(**inputs).last_hidden_state
    out.sum().backward()
    model(**inputs)  # and says nothing, which would be an error here
    assert model.encoder.layer[0].output.dense.weight.grad is not None
    assert not any(calls)
    with torch.inference_mode():
        model(**inputs)
    model.requires_grad_(False)
    model(**inputs)
    assert calls[4:] == 4 * [True]


def test_autocast_is_left_to_the_layers_of_torch(calls: list[bool]) -> None:
    ours, theirs = _both("Bert")
    inputs = tiny_transformers.tokens("Bert", "none")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(_out(ours, **inputs), _out(theirs, **inputs))
    assert not any(calls)


@pytest.mark.parametrize("padding", PADDINGS)
def test_scores_with_a_cap_are_left_to_the_layers_of_torch(padding: str, calls: list[bool]) -> None:
    ours, theirs = _both("Gemma2")
    inputs = tiny_transformers.tokens("Gemma2", padding)
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(_out(ours, **inputs)[real], _out(theirs, **inputs)[real])
    arguments = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    assert torch.equal(ours.generate(**inputs, **arguments), theirs.generate(**inputs, **arguments))
    assert not any(calls)


@pytest.mark.exhaustive
def test_a_compiled_model_is_that_of_torch(calls: list[bool]) -> None:
    ours, theirs = _both("Bert")
    inputs = tiny_transformers.tokens("Bert", "right")
    compiled = torch.compile(ours, backend="eager")
    real = inputs["attention_mask"].bool()
    _assert_close(_out(compiled, **inputs)[real], _out(theirs, **inputs)[real])
    assert not any(calls)


@pytest.mark.parametrize("family", ["Llama", "ModernBert"])
def test_positions_of_the_caller(family: str, calls: list[bool]) -> None:
    ours, theirs = _both(family)
    inputs = {"input_ids": torch.randint(3, tiny_transformers.VOCABULARY, (2, 9))}
    positions = torch.tensor([[0, 2, 4, 6, 8, 10, 12, 100, 127], [9, 8, 7, 6, 5, 4, 3, 2, 1]])
    given = inputs | {"position_ids": positions, "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    _assert_close(_out(ours, **given), _out(theirs, **given))
    # Layers of ModernBERT are not told them; what they turn by says that they are others.
    assert calls == 2 * [family == "Llama"]
    beyond = given | {"position_ids": positions + 1}
    _assert_close(_out(ours, **beyond), _out(theirs, **beyond))
    assert not any(calls[2:])


def test_masks_of_the_caller(calls: list[bool]) -> None:
    ours, theirs = _both("Llama")
    tokens = torch.randint(3, tiny_transformers.VOCABULARY, (2, 9))
    allowed = (torch.rand(2, 1, 9, 9) < 0.5) | torch.eye(9, dtype=torch.bool)
    additive = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    for mask in (allowed, additive):
        _assert_close(*(_out(model, input_ids=tokens, attention_mask=mask) for model in (ours, theirs)))
    assert calls == 4 * [True]


def _copied(model: Any) -> Any:
    return copy.deepcopy(model)


def _saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [_copied, _saved])
def test_copies_have_weights_of_their_own(again: Any, calls: list[bool]) -> None:
    model, inputs = _both("Llama")[0], tiny_transformers.tokens("Llama", "left")
    before = _out(model, **inputs)
    other = again(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    assert torch.equal(_out(other, **inputs), before)
    assert not torch.allclose(_out(model, **inputs), before, atol=0.01)
    assert all(calls)


def test_names_of_weights_stay() -> None:
    ours, theirs = _both("Llama")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert [type(x) for x in ours.modules()] == [type(x) for x in theirs.modules()]


@pytest.mark.parametrize("family", ["Mixtral", "GptOss", "Qwen2Moe", "Qwen3Moe", "Olmoe"])
def test_layers_with_experts_stay(family: str) -> None:
    with pytest.raises(ValueError, match=r"model_type '\w+' is none of bert, "):
        layers_of(getattr(transformers, f"{family}Config")())


def test_it_says_what_it_replaced() -> None:
    model = torch.nn.ModuleDict({name: tiny_transformers.model(name) for name in ("Bert", "Albert", "T5")})
    bert = model["Bert"].encoder
    bert.layer[1].output.dense = torch.nn.utils.parametrizations.weight_norm(bert.layer[1].output.dense)
    done = accelerate(model)
    assert done.replaced == ("Bert.encoder.layer.0",)
    assert done.kept["Bert.encoder.layer.1"] == "its output.dense is a torch.nn.utils.parametrize.ParametrizedLinear"
    assert done.kept["Albert"].startswith("model_type 'albert' is none of bert, ")
    assert set(done.kept) == {"Bert.encoder.layer.1", "Albert", "T5.encoder", "T5.decoder"}
    lines = str(done).splitlines()
    assert lines[0] == "replaced: 1 layer, Bert.encoder.layer.0"
    assert lines[1] == f"kept: Bert.encoder.layer.1: {done.kept['Bert.encoder.layer.1']}"
    assert str(accelerate(torch.nn.Linear(2, 2))) == "replaced: no layers"
    assert accelerate(torch.nn.Linear(2, 2)) == Acceleration((), {})


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("Llama", {"rope_parameters": DYNAMIC}, "'dynamic', by which a token is turned otherwise"),
        ("Bert", {"hidden_act": "tanh"}, "config.json: hidden_act must be"),
        ("Bert", {"is_decoder": True}, "config.json: is_decoder must be False"),
    ],
)
def test_what_is_computed_otherwise_stays(family: str, change: dict[str, Any], reason: str) -> None:
    config = (ENCODERS | tiny_transformers.DECODERS)[family] | change
    model = transformers.AutoModel.from_config(getattr(transformers, f"{family}Config")(**config)).eval()
    done = accelerate(model)
    assert done.replaced == ()
    assert reason in " ".join(done.kept.values())


def test_layers_with_windows_are_replaced_all_or_none() -> None:
    model = tiny_transformers.model("Gemma2")
    model.model.layers[1].mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(32))
    done = accelerate(model)
    assert done.replaced == ()
    assert done.kept["model.layers.1"] == "its parameters are not those of its family: mlp.down_proj.bias"
    assert done.kept["model.layers.0"] == "layers with windows share their masks, and layers.1 stays"


def test_a_second_time_is_like_the_first(calls: list[bool]) -> None:
    ours, theirs = _both("Bert")
    assert len(accelerate(ours).replaced) == 2
    inputs = tiny_transformers.tokens("Bert", "left")
    real = inputs["attention_mask"].bool()
    _assert_close(_out(ours, **inputs)[real], _out(theirs, **inputs)[real])
    assert calls == [True, True]


TRAINED = ("Bert", "DistilBert", "ModernBert", "Llama", "Gemma2", "GPT2")


@pytest.mark.parametrize("family", TRAINED)
def test_training_has_the_gradients_of_torch(family: str, monkeypatch: pytest.MonkeyPatch, calls: list[bool]) -> None:
    theirs, inputs, rows = tiny_transformers.in_training(family, torch.float64)
    theirs.set_attn_implementation("eager")
    ours = copy.deepcopy(theirs)
    assert len(accelerate(ours, training=True).replaced) == 2
    attended, found = [], {}

    def watched(*tensors: Any, **options: Any) -> Any:
        attended.append(options)
        return scaled_dot_product_attention(*tensors, **options)

    monkeypatch.setattr(attention_module, "recorded_attention", watched)
    for model in (ours, theirs):
        tiny_transformers.loss(model, inputs, rows).backward()
        found[model] = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
        assert all(x is not None for x in found[model].values())
    assert found[ours].keys() == found[theirs].keys()
    largest = max(x.abs().max() for x in found[theirs].values())
    for name, expected in found[theirs].items():  # some of which have a softmax in float32
        close = CLOSE * expected.abs().max() + CLOSE / 100 * largest
        assert ((found[ours][name] - expected).abs() <= close).all(), name
    assert (len(attended), any(calls)) == (2, False)
    ours.eval(), theirs.eval()
    _assert_close(_out(ours, **inputs)[rows], _out(theirs, **inputs)[rows])
    assert calls == [False, False, True, True]


def test_what_training_refuses() -> None:
    made = accelerate(tiny_transformers.model("MPNet"), training=True)
    assert made == Acceleration(
        (), {"MPNetModel": "it computes attention by itself, so that this library cannot train it"}
    )
    with pytest.raises(TypeError, match="accelerate: training must be a bool"):
        accelerate(tiny_transformers.model("Bert"), training="yes")  # type: ignore[arg-type]
