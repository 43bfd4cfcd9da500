"""Models of transformers of which a part has been changed: as their own layers compute, before and after accelerate."""

from __future__ import annotations

import copy
import functools
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from matrix import matrix, nightly

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import tiny_transformers  # noqa: E402
from module_mutations import mutations  # noqa: E402

from mha_native.interop.torch import accelerate  # noqa: E402
from mha_native.interop.transformers import layers  # noqa: E402

FAMILIES = ("Bert", "Roberta", "DistilBert", "Electra", "ModernBert", "MPNet", "GPT2", "Llama", "Mistral", "Qwen2",
            "Qwen3", "Gemma2", "Gemma3Text")  # fmt: skip
CLOSE = 1e-5  # as in test_accelerate.py

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@functools.cache
def _model(family: str) -> Any:
    return tiny_transformers.model(family)


def _layer(model: Any) -> Any:
    """The second layer."""
    lists = (x for x in model.modules() if isinstance(x, torch.nn.ModuleList) and len(x) == 2)
    return next(iter(lists))[1]


def _result(model: Any, family: str) -> Any:
    """The rows that a model makes, or the class of what it raises."""
    inputs = tiny_transformers.tokens(family, "right")
    torch.manual_seed(3)  # of dropout
    try:
        with torch.no_grad():
            out = model(**inputs)
    except Exception as error:  # the same from both
        return type(error)
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state)[inputs["attention_mask"].bool()]


def _is_close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, type) or isinstance(theirs, type):
        return ours is theirs
    near = (ours - theirs).abs() <= CLOSE * theirs.abs().clamp(min=1)
    return bool((near | (ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def campaign(family: str, step: int) -> dict[str, int]:
    """Try every `step`-th mutation; return how many there were, and how many of them changed results."""
    plain = _model(family)
    unchanged = _result(plain, family)
    after, second = copy.deepcopy(plain), copy.deepcopy(plain)
    assert len(accelerate(after).replaced) == 2
    assert _is_close(_result(after, family), unchanged)
    counts = {"mutations": 0, "changing": 0, "left": 0}
    for mutation in list(mutations(_layer(plain)))[::step]:
        undo = mutation.apply(_layer(plain))
        expected = _result(plain, family)
        undo()
        changes = not _is_close(expected, unchanged)

        undo = mutation.apply(_layer(after))
        assert _is_close(_result(after, family), expected), f"after: {mutation}"
        undo()
        before = copy.deepcopy(second)
        mutation.apply(_layer(before))
        done = accelerate(before)
        assert _is_close(_result(before, family), expected), f"before: {mutation}"
        if changes:  # it says which part
            assert any(mutation.name in reason or mutation.part in reason for reason in done.kept.values()), mutation
            counts["changing"] += 1
        counts["mutations"] += 1
        counts["left"] += bool(done.kept)
    with pytest.MonkeyPatch.context() as patch:
        computed, calls = layers.LayerForward._computed, []
        patch.setattr(
            layers.LayerForward,
            "_computed",
            lambda self, given: calls.append(out := computed(self, given)) or out,
        )
        assert _is_close(_result(after, family), unchanged)
        assert len(calls) == 2
        assert all(out is not None for out in calls), "the layers of torch compute after all changes are undone"
    return counts


@matrix(family=nightly(FAMILIES, quick=("Bert", "MPNet", "GPT2", "Gemma3Text")), step=nightly((1, 6), quick=(6,)))
def test_changed_parts_compute_as_in_torch(family: str, step: int) -> None:
    counts = campaign(family, step)
    assert counts["mutations"] > 8
    assert counts["changing"] > 2


def _replaced_activation(model: Any) -> None:
    model.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.Tanh()


def _other_activation_in_the_config(model: Any) -> None:
    model.config.hidden_act = "relu"


def _dropout_that_drops(model: Any) -> None:
    model.encoder.layer[1].output.dropout.train()


@pytest.mark.parametrize(
    ("change", "names", "reason"),
    [
        (_replaced_activation, [1], "its intermediate.intermediate_act_fn is a Tanh, and not a GELUActivation"),
        (
            lambda model: setattr(model.encoder.layer[1].attention.self, "scaling", 3.0),
            [1],
            "its attention.self.scaling is 3.0, and not 0.3535533905932738",
        ),
        (
            lambda model: setattr(model.encoder.layer[1].output.LayerNorm, "eps", 0.5),
            [1],
            "its output.LayerNorm.eps is 0.5, and not 1e-12",
        ),
        (
            lambda model: setattr(model.encoder.layer[1].output, "forward", lambda x, y: x),
            [1],
            "its output has a forward of its own",
        ),
        (
            lambda model: setattr(model.encoder.layer[1], "feed_forward_chunk", lambda x: x),
            [1],
            "it has a feed_forward_chunk of its own",
        ),
        (_dropout_that_drops, [1], "its output.dropout is in training mode"),
        (
            _other_activation_in_the_config,
            [0, 1],
            "its intermediate.intermediate_act_fn is a GELUActivation, and not a torch.nn.ReLU",
        ),
    ],
)
def test_it_says_what_has_been_changed(change: Callable[[Any], Any], names: list[int], reason: str) -> None:
    model = tiny_transformers.model("Bert")
    change(model)
    assert accelerate(model).kept == {f"encoder.layer.{i}": reason for i in names}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_method_that_other_code_put_into_a_class(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _model("Bert"), tiny_transformers.model("Bert")
    unchanged, kind = _result(theirs, "Bert"), type(theirs.encoder.layer[0].attention.output)
    if when == "after":
        accelerate(ours)
        assert _is_close(_result(ours, "Bert"), unchanged)
    monkeypatch.setattr(kind, "forward", lambda self, x, *others, **named: x)
    if when == "before":
        kept = accelerate(ours).kept
        assert kept["encoder.layer.0"] == "the forward of the class of its attention.output has been replaced"
    expected = _result(theirs, "Bert")
    assert not _is_close(expected, unchanged)
    assert torch.equal(_result(ours, "Bert"), expected)


def test_hooks_of_all_modules_run_in_the_layers_of_torch() -> None:
    theirs, ours = _model("Bert"), tiny_transformers.model("Bert")
    accelerate(ours)
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, out: 2 * out if type(module) is torch.nn.LayerNorm else None
    )
    try:
        assert torch.equal(_result(ours, "Bert"), _result(theirs, "Bert"))
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_changes_of_a_copy_are_noticed(again: Callable[[Any], Any]) -> None:
    model, theirs = tiny_transformers.model("Llama"), tiny_transformers.model("Llama")
    accelerate(model)
    for changed in (other := again(model), theirs):
        changed.model.layers[0].self_attn.scaling = 3.0
    assert _is_close(_result(other, "Llama"), _result(theirs, "Llama"))
    assert not _is_close(_result(model, "Llama"), _result(theirs, "Llama"))


def _half(model: Any) -> Any:
    return model.to(torch.float16)


def _saved(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder)


def _derived(model: Any) -> Any:
    model.__class__ = type("Mine", (type(model),), {"__init__": None})
    return model


def _checkpointing(model: Any) -> Any:
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _without_dropout(model: Any) -> Any:
    for part in model.modules():
        for name, child in part.named_children():
            if isinstance(child, torch.nn.Dropout):
                child.p = 0.9
                setattr(part, name, torch.nn.Identity() if name == "dropout" else child)
    return model


def _reported(model: Any) -> Any:
    model.some_note = model.config
    for part in model.modules():
        part.note = "of its owner"
    return model


UNCHANGED = {
    "plain": lambda model: model,
    "training": lambda model: model.train(),
    "half": _half,
    "saved": _saved,
    "copied": copy.deepcopy,
    "derived": _derived,
    "checkpointing": _checkpointing,
    "without dropout": _without_dropout,
    "notes": _reported,
    "frozen": lambda model: model.requires_grad_(False),
    "eager": lambda model: model.set_attn_implementation("eager") if model._supports_sdpa else None,
    "generated": lambda model: (
        model.generate(torch.ones(1, 3, dtype=torch.int64), max_new_tokens=2, pad_token_id=0)
        if model.can_generate()
        else None
    ),
}


@matrix(family=nightly(FAMILIES, quick=("Bert", "MPNet", "GPT2", "Gemma3Text")), state=list(UNCHANGED))
def test_unchanged_models_are_replaced(family: str, state: str) -> None:
    model = copy.deepcopy(_model(family))
    made = UNCHANGED[state](model)
    model = made if isinstance(made, torch.nn.Module) else model
    before, random = model.config.to_dict(), torch.get_rng_state()
    done = accelerate(model)
    assert (len(done.replaced), done.kept) == (2, {})
    assert model.config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), random)
    if state != "half":
        assert _is_close(_result(model.eval(), family), _result(_model(family), family))
