"""Every type of model that transformers knows, by what is registered: the results of "eager", or a refusal by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import shrunken_transformers  # noqa: E402

from mha_native.interop.transformers import own_attention, register  # noqa: E402

# The largest difference of results, as a part of the largest one: float32 rounds each product differently.
CLOSE = 1e-5
# Some of which a mask used to be lost, or misread.
EQUAL = ("aimv2", "clip", "gpt2", "llama", "longt5", "nllb-moe", "paligemma", "pegasus_x", "splinter", "t5", "whisper")
OWN_ATTENTION = ("big_bird", "bloom", "codegen", "gpt_neox_japanese", "longformer", "mpnet", "roformer", "xglm")
TABLES = ("data2vec-vision", "falcon", "git", "gpt_neo", "gptj", "sam_vision_model")

# "eager" adds their boolean masks as 0 and 1, and a change of the image by 3e-7 changes its small models by 5 %.
INCOMPARABLE = {"grounding-dino", "mm-grounding-dino"}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class _Unreached(Exception):
    """A type that is not compared, because "eager" does not compute it small."""


def _compared(kind: str) -> str:
    """Compare the results of both implementations: "equal", or the message of a refusal."""
    register()
    try:
        eager = shrunken_transformers.model(kind, "eager")
        accepted = []
        for padding in ("none", "right", "left"):
            given, expected = shrunken_transformers.accepted(eager, padding)
            accepted.append((padding, given, expected))
    except Exception as error:
        raise _Unreached(f"{type(error).__name__}: {error}") from error
    try:
        ours = shrunken_transformers.model(kind, "mha_native")
        for padding, given, expected in accepted:
            for mine, theirs in zip(shrunken_transformers.outputs(ours, given), expected, strict=True):
                is_number = theirs.isfinite()
                assert torch.equal(mine.isfinite(), is_number)
                difference = (mine - theirs)[is_number].abs().max() / theirs[is_number].abs().max()
                assert difference <= CLOSE, f"{kind} with padding {padding} and {list(given)}"
    except RuntimeError as error:
        if not str(error).startswith("mha_native"):
            raise
        return str(error)
    return "equal"


@pytest.mark.parametrize("kind", EQUAL)
def test_results_are_those_of_eager(kind: str) -> None:
    assert _compared(kind) == "equal"


@pytest.mark.parametrize("kind", [*OWN_ATTENTION, *TABLES])
def test_models_with_their_own_attention_are_refused_by_name(kind: str) -> None:
    message = _compared(kind)
    assert kind.partition("_")[0].partition("-")[0] in message.replace("_", "").lower() or f"({kind})" in message
    assert 'computes attention by itself, so that attn_implementation="mha_native" has no effect on it' in message
    assert 'use "eager" or "sdpa"' in message


@pytest.mark.parametrize("kind", ["bigbird_pegasus", "deepseek_v32"])
def test_models_that_misread_a_mask_are_refused_by_name(kind: str) -> None:
    """Such models have layers that use what is registered, and other ones."""
    message = _compared(kind)
    assert message.startswith(f"mha_native: a model of type {kind!r} applies ")
    assert 'use attn_implementation="eager" or "sdpa" for this part of the model' in message


def test_a_sink_of_another_name_is_refused() -> None:
    assert "the argument sinks is not computed" in _compared("inkling2_text")


def test_a_model_of_the_user_does_not_refuse_others() -> None:
    """A class in a notebook has no source in which transformers could look for its attention."""

    class Mine(transformers.BertPreTrainedModel):  # type: ignore[misc, name-defined]
        __module__ = "nowhere"
        _can_set_attn_implementation_cached_value = None  # as if no base class had been asked before

    assert not Mine._can_set_attn_implementation()
    assert Mine.config_class is transformers.BertConfig
    own_attention._usable.discard(transformers.BertConfig)
    assert _compared("bert") == "equal"
    assert transformers.BertConfig in own_attention._usable


def test_another_name_is_refused_in_tables_too() -> None:
    _compared("gptj")
    register("another name")
    with pytest.raises(RuntimeError, match=r'GPTJAttention .* attn_implementation="another name" has no effect'):
        shrunken_transformers.model("gptj", "another name")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bigbird_pegasus", "splinter"])
def test_compiled_models_are_those_of_eager(kind: str) -> None:
    """In a compiled graph a mask has no structure that could refuse what attention of its own does with it."""
    register()
    given, expected = shrunken_transformers.accepted(shrunken_transformers.model(kind, "eager"), "right")
    ours = torch.compile(shrunken_transformers.model(kind, "mha_native"), backend="eager")
    with torch.no_grad():
        found = ours(**given)[0]
    mine = found if kind == "bigbird_pegasus" else found[given["attention_mask"].bool()]
    assert (mine - expected[0]).abs().max() <= CLOSE * expected[0].abs().max()


@pytest.mark.exhaustive
def test_every_type_is_equal_or_refused() -> None:
    """Of other types "eager" computes no small model of these sizes, or none without packages that are not here."""
    wrong, reached = {}, 0
    for kind in sorted(set(shrunken_transformers.model_types()) - INCOMPARABLE):
        try:
            _compared(kind)
        except _Unreached:
            continue
        except Exception as error:
            wrong[kind] = f"{type(error).__name__}: {error}"
        reached += 1
    assert wrong == {}
    assert reached > 300
