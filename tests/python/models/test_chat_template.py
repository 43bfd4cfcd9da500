"""Chat templates: what transformers makes of a conversation, in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")

import tiny_language_model

from mha_native.models import CausalLM
from mha_native.models.text.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Grüße <b>& 日本\n"},
]

TEMPLATES = {
    "tiny": tiny_language_model.TEMPLATE,
    "whitespace": "{%- for m in messages %}\n  {{ m.role }}\n {% if loop.last %}\n,\n  {% endif %}\n{%- endfor -%}\n x",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "variables": "{{ tools is none }}{{ enable_thinking | default(true) }}{{ bos_token }}{{ pad_token is defined }}",
}


def written(folder: Path, template: str, **files: Any) -> Path:
    settings = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": template}
    return tiny_language_model.write(folder, {"tokenizer_config.json": settings, **files})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_conversations_are_those_of_transformers(name: str, add_generation_prompt: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = CausalLM.from_pretrained(written(tmp_path, TEMPLATES[name]))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_language_model.tokenizer(), bos_token="<|begin|>", eos_token="<|end|>"
    )
    theirs.chat_template = TEMPLATES[name]
    for variables in ({}, {"enable_thinking": False}):
        given: Any = {"add_generation_prompt": add_generation_prompt, **variables}
        expected = theirs.apply_chat_template(MESSAGES, tokenize=False, **given)
        assert model.apply_chat_template(MESSAGES, **given) == expected


def test_an_answer_continues_the_text_of_the_conversation(tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path))
    text = model.apply_chat_template(MESSAGES[1:])
    assert text == "<|begin|>user: Grüße <b>& 日本<|end|>\n<|begin|>assistant:"
    tokens = model.tokenize(text, add_special_tokens=False)
    assert tokens[0] == tiny_language_model.BEGIN
    answer = model.chat(MESSAGES[1:], max_new_tokens=9)
    assert answer == model.generate(tokens, max_new_tokens=9)
    assert "".join(model.chat(MESSAGES[1:], max_new_tokens=9, stream=True)) == answer
    short = [{"role": "user", "content": "?"}]
    assert model.chat([MESSAGES[1:], short], max_new_tokens=9) == [answer, model.chat(short, max_new_tokens=9)]


def test_a_template_of_its_own_file_counts(tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(written(tmp_path, "old", **{"chat_template.jinja": "new {{ messages[0].role }}"}))
    assert model.apply_chat_template(MESSAGES) == "new system"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system prompts here\nreally') }}", "the chat template failed: no system prompts here"),
        ("{{ messages[9].role }}", "the chat template failed"),
        ("{% for %}", "the chat template is not valid"),
        ("{{ ''.__class__.__mro__ }}", "the chat template failed"),
        ("{{ messages.append(1) }}", "the chat template failed"),
        ("{% include '/etc/passwd' %}", "the chat template failed"),
        ("{{ cycler.__init__.__globals__ }}", "the chat template failed"),
        ("{% for i in range(999999999) %}{% endfor %}", "the chat template failed"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error(template: str, words: str, tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(written(tmp_path, template))
    with pytest.raises(ValueError, match=words) as caught:
        model.chat(MESSAGES)
    assert str(caught.value).startswith("CausalLM.chat: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_template_sees_copies_of_plain_values() -> None:
    class Message(dict):  # type: ignore[type-arg]
        def secret(self) -> str:
            return "seen"

    template = ChatTemplate(Path("x"), "{{ messages[0].secret is defined }}", {})
    assert template.render([Message(role="user")], True, {}) == "False"
    with pytest.raises(TypeError, match="JSON"):
        template.render([{"role": "user", "content": object()}], True, {})


@pytest.mark.parametrize(
    ("messages", "kind", "words"),
    [
        ("Hello", TypeError, "CausalLM.chat: messages must be a list of dicts with role and content; got str"),
        ([], ValueError, "CausalLM.chat: messages must have a message; got none"),
        (["Hello"], TypeError, "messages must be dicts with role and content; got str at 0"),
        ([{"content": "a"}], ValueError, "messages must have a role"),
        ({"role": "user"}, TypeError, "got dict"),
        ([[{"role": "user", "content": "a"}], []], ValueError, "got none"),
    ],
    ids=str,
)
def test_bad_messages_are_refused(messages: Any, kind: type[Exception], words: str, tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path))
    with pytest.raises(kind, match=words):
        model.chat(messages)


def test_without_a_template_there_is_no_conversation(tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path, {"tokenizer_config.json": None}))
    with pytest.raises(ValueError, match=r"CausalLM.chat: .*config.json has no chat template"):
        model.chat(MESSAGES)
    assert isinstance(model.generate("a", max_new_tokens=2), str)


def test_without_jinja2_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM.from_pretrained(tiny_language_model.write(tmp_path))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jinja2", None)
        with pytest.raises(ImportError, match=r"jinja2 is not installed: pip install jinja2$"):
            model.chat(MESSAGES)
    import jinja2

    monkeypatch.setattr(jinja2, "__version__", "3.1.5")
    with pytest.raises(ImportError, match=r'CausalLM.chat: jinja2 3.1.5 is too old: pip install "jinja2>=3.1.6"'):
        model.chat(MESSAGES)
