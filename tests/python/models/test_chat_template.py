"""Chat templates: what transformers makes of a conversation, in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")

import fresh_process
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


def _grown(first: str, step: str, end: str = "") -> str:
    """A template with a value that 60 steps change, each from the one before, `ns.x`."""
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
    )


_LONG = "{% set x = 'a' * 1000000 %}"

SLOW = _LONG + "{% for i in range(99999) %}{{ x.isalpha() }}{% endfor %}"

# What fills all memory, or runs without end, by jinja2's own sandbox.
GREEDY = {
    "power": "{{ 'a' * 10**10 }}",
    "list": "{{ ([0] * 10**9) | length }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "doubling": _grown("'a'", "ns.x + ns.x"),
    "tilde": _grown("'a'", "ns.x ~ ns.x"),
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "text loops": _LONG + "{% for i in x %}{% for j in x %}{% for k in x %}{% endfor %}{% endfor %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "replace": _LONG + "{{ x.replace('a', x) }}",
    "join": _LONG + "{{ x.join(x | list) }}",
    "joinf": _LONG + "{{ x | join(x) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "star": "{{ '%*d' % (10**10, 1) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "format2": "{{ '{:{}}'.format(1, 10**10) }}",
    "fformat": "{{ '%10000000000s' | format('a') }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "bytes": "{{ (5).to_bytes(10**10) }}",
    "output": _LONG + "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "constant": "{% for i in range(99999) %}" + "b" * 1000 + "{% endfor %}",
    "slices": "{% set ns = namespace(x='a' * 1000000, l=[]) %}"
    "{% for i in range(99999) %}{% set ns.l = ns.l + [ns.x[1:]] %}{% endfor %}",
    "deep JSON": _grown("['a', 'b']", "[ns.x, 'a', 'b']", "{{ ([ns.x] * 10000) | tojson(indent=16) }}"),
    "indentf": "{{ ('a\n' * 100000) | indent(10**6) }}",
    "wordwrap": "{{ ('a ' * 100000) | wordwrap(1, wrapstring='b' * 100000) }}",
    "sum": "{{ ([[0] * 100000] * 100000) | sum(start=[]) | length }}",
    "filter block": "{% filter center(10**10) %}a{% endfilter %}",
    "block set": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = x %}{% endfor %}",
    "attr": "{{ ('a' | attr('ljust'))(10**10) }}",
    "map": "{{ range(99999) | map('center', 10**6) | list }}",
    "strftime": "{{ strftime_now('%010000000000d') }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "expandtabs": "{{ ('\t' * 100000).expandtabs(10**6) }}",
    "nested": _grown("[0]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "zfill": "{{ '1'.zfill(10**10) }}",
    "rangelist": "{{ range(10**9) | list }}",
    "fold": "{{ 'a' | center(10**10) | length }}",
    "string": "{{ (('a,' * 8000000).split(',')) | length }}",
    "items": "{{ ('é' * 16000000) | list | length }}",
    "repr": _grown("'a'*1000", "[ns.x, ns.x] | string"),
    "tojson": _grown("'a'", "[ns.x, ns.x] | tojson"),
    "compare": _grown("[0]", "[ns.x, ns.x]") + "{% set y = ns.x %}" + _grown("[0]", "[ns.x, ns.x]", "{{ ns.x == y }}"),
    "dicts": _grown("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    "dict()": _grown("{}", "dict(a=ns.x, b=ns.x)", "{{ ns.x | string }}"),
    "tuples": _grown("()", "(ns.x, ns.x)", "{{ ns.x ~ 'a' }}"),
    "nested text": _LONG + "{{ ([[x]] * 1000000) | string | length }}",
    "three billion": "{{ 'a' * 3000000000 }}",
    "characters": "{{ ('😀' * 15000000) | list | length }}",
    "batches": "{{ ('a' * 15000000) | batch(1) | list | length }}",
    "selected": "{{ ('😀' * 3000000) | select | list | length }}",
    "parts": "{{ ('a,' * 7000000).split(',') | length }}",
    # The results of these are small, and their time is not.
    "strip": _LONG + "{{ x.strip('b' * 1000000 ~ 'a') }}",
    "trim": _LONG + "{{ x | trim('b' * 1000000 ~ 'a') }}",
    "rfind": _LONG + "{{ x.rfind('ab' ~ 'a' * 500000) }}",
    "urlize": "{{ ('a' ~ '(' * 400000 ~ ')' * 400000) | urlize }}",
    "wordwrap of a word": _LONG + "{{ x | wordwrap(1) }}",
    "striptags": "{{ ('<!---->' * 500000) | striptags }}",
    "pprint": _grown("[0]", "[ns.x, ns.x][:1] * 4", "{{ ns.x | pprint }}"),
}

LIMIT = "it must make at most"


def test_a_template_that_would_fill_the_memory_or_run_without_end_is_refused() -> None:
    """All of them in one process, which has 1 GiB of memory and two minutes."""
    others = {
        "a namespace cannot become text": "{% set ns = namespace() %}{% set ns.x = namespace(a=ns) %}{{ ns }}",
        "maximum recursion depth": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "indent of tojson must be at most 16; got 17": "{{ messages | tojson(indent=17) }}",
        "separators of tojson must have at most 16": "{{ messages | tojson(separators=(',' * 17, ':')) }}",
        "'lipsum' is undefined": "{{ lipsum(10**9) }}",
        "integers must have at most 4096 bits": "{{ 3 ** 10000000000 }}",
        "integers must have at": _grown("10**6", "ns.x * ns.x", "{{ ns.x }}"),
        "start of sum must be a number": "{{ range(8000) | map('string') | map('list') | sum(start=[]) | length }}",
        "it must take at most 1 s of processor time": SLOW,
    }
    code = f"""
        import resource
        from pathlib import Path
        from mha_native.models.text import bounded_template
        from mha_native.models.text.chat_template import ChatTemplate
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        for template in {[*GREEDY.values(), *others.values()]!r}:
            bounded_template._SECONDS = 1 if template == {SLOW!r} else 60  # others come to another limit, however late
            try:
                print("made", ChatTemplate(Path("x"), template, {{}}).render([{{"role": "user"}}], True, {{}})[:20])
            except ValueError as error:
                print(error)
    """
    result = fresh_process.run(code)
    assert result.stderr == ""
    for name, message in zip([*GREEDY, *others], result.stdout.splitlines(), strict=True):
        assert message.startswith("x: the chat template failed: "), (name, message)
        assert (name if name in others else LIMIT) in message, (name, message)


def test_a_template_that_is_too_long_is_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"^x: the chat template must have at most 131072 characters; got 200000$"):
        ChatTemplate(Path("x"), "{{ a }}".ljust(200000), {}).render(MESSAGES, True, {})


def test_a_long_conversation_may_make_much() -> None:
    """More for longer messages: copies, loops, slices, and a list that grows by each message."""
    template = (
        "{% set ns = namespace(kept=[], text='') %}{% for m in messages[::-1][:] %}{% set ns.kept = ns.kept + [m] %}"
        "{% if loop.last %}{% set ns.text = ns.text ~ m.content[1:].replace('b', 'bbbb') %}{% endif %}"
        "{% for part in m.content.split('b') %}{{ part | trim }}{% endfor %}{{ m | tojson }}{{ m | tojson(indent=2) }}"
        "{{ loop.length }}{{ '%d: {}'.format(m.time) % m.time }}{{ m.time * 2 }}"
        "{% endfor %}{{ ns.text | length + 10**9 }}{{ ns.kept | length }}"
    )
    messages = [{"role": "user", "content": f"{i} ab" * 200, "time": 1700000000} for i in range(100)]
    text = ChatTemplate(Path("x"), template, {}).render(messages, True, {})
    assert text.endswith(f"{10**9 + 4 * 200 - 1 + 3 * 200}100")
    assert ChatTemplate(Path("x"), template, {}).render(messages, True, {}) == text


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
