"""``python -m mha_native chat``: conversations on a terminal and in a pipe, and interrupts that end only an answer."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import gguf_files
import tiny_language_model
from asleep import wait_until_asleep
from command_line import assert_refused, run
from terminal import Terminal

from mha_native.commands import chat
from mha_native.models import CausalLM

CUT = "may go on\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=400))


def _chat(lines: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "mha_native", "chat", *arguments]
    result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, encoding="utf-8")
    return result.returncode, result.stdout, result.stderr


def _conversation(model: CausalLM, questions: list[str], system: str | None = None, **options: Any) -> list[str]:
    """The answers to questions, each after all before it, as `CausalLM.chat` gives them."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    answers = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        answers.append(model.chat(messages, **options))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_a_conversation_in_a_pipe(directory: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": 9, "temperature": 0.7, "top_k": 30, "seed": 3}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    lines = "the\n\na the\n/reset\na the\n/help\n/exit\nnobody reads this\n"
    code, out, err = _chat(lines, "--model", directory, "--system", "a é", *arguments)
    model = CausalLM.from_pretrained(directory)
    first, second = _conversation(model, ["the", "a the"], "a é", **options)
    (again,) = _conversation(model, ["a the"], "a é", **options)
    assert second != again, "the first message must count"
    code_lines = "/reset  begin a new conversation\n/exit   end, as Ctrl-D does\n"
    assert (code, out[: out.index("/reset")]) == (0, f"{first}\n{second}\n{again}\n")
    assert out.partition(f"{again}\n")[2].startswith(code_lines)
    assert err.count("tokens a second") == err.count(CUT) == 3


def test_the_messages_before_are_not_read_again(language_model_file: Path) -> None:
    questions = ["What colour has the sea? " * 12, "Why?"]
    code, out, err = _chat("\n".join(questions), "--model", str(language_model_file), "--max-new-tokens", "5")
    model = CausalLM.from_pretrained(language_model_file)
    answers = _conversation(model, questions, max_new_tokens=5)
    assert (code, out) == (0, "".join(f"{answer}\n" for answer in answers))
    turns = zip(("user", "assistant", "user"), (questions[0], answers[0], questions[1]), strict=True)
    text = model.apply_chat_template([{"role": role, "content": content} for role, content in turns])
    _, second = (int(count) for count in re.findall(r"(\d+) tokens read", err))
    assert second == len(model.tokenize(text, add_special_tokens=False)) - 64, "a page is there"


def test_an_interrupt_ends_only_the_answer(tmp_path: Path) -> None:
    directory = str(tiny_language_model.write(tmp_path / "long", n_positions=100_000))
    with Terminal("chat", "--model", directory, "--max-new-tokens", "99999") as terminal:
        assert "/help" in terminal.wait_for("> ")
        wait_until_asleep(terminal.process.pid)
        terminal.interrupt()
        assert "Ctrl-D ends" in terminal.wait_for("> ")
        for question in ("the", "a the"):
            terminal.type(f"{question}\n")
            terminal.wait_for(f"{question}\n")
            while len(terminal.shown) - terminal.shown.rfind(f"{question}\n") < 50:
                terminal.read_more()
            terminal.interrupt()
            assert re.search(r"\d+ tokens read in .* tokens a second\n> $", terminal.wait_for("> "))
        terminal.type("/clear\n")
        terminal.wait_for("/clear\n> ")
        terminal.type("\x04")
        assert terminal.end() == (0, "\n")


def test_a_key_that_is_held_is_one_interrupt() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with chat._one_interrupt():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_answer_stays_in_the_conversation(
    directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer is the one after the beginning of the first one that was shown."""
    shown: list[str] = []

    def interrupted(piece: str) -> None:
        shown.append(piece)
        if len(shown) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "write_at_once", interrupted)
    monkeypatch.setattr(chat, "_lines", lambda: iter(["the", "a the"]))
    assert run(capsys, "chat", "--model", directory, "--max-new-tokens", "9")[0] == 0
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "".join(shown[:3])}]
    answer = CausalLM.from_pretrained(directory).chat(
        [*messages, {"role": "user", "content": "a the"}], max_new_tokens=9
    )
    assert "".join(shown[3:]) == answer


def test_room_grows_with_the_conversation(
    directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "_FEWEST_PAGES", 1)
    questions = ["the", "a the é " * 9, "a", "the"]
    monkeypatch.setattr(chat, "_lines", lambda: iter(questions))
    answers = _conversation(CausalLM.from_pretrained(directory), questions, max_new_tokens=20)
    code, out, _ = run(capsys, "chat", "--model", directory, "--max-new-tokens", "20")
    assert (code, out) == (0, "".join(f"{answer}\n" for answer in answers))


def test_a_conversation_that_is_too_long_says_so_and_goes_on(directory: str) -> None:
    code, out, err = _chat(f"{'a' * 500}\nthe\n", "--model", directory, "--max-new-tokens", "3")
    assert (code, out) == (0, f"{_conversation(CausalLM.from_pretrained(directory), ['the'], max_new_tokens=3)[0]}\n")
    assert re.match(r"mha_native: the conversation has \d+ tokens, and the model 400; /reset begins another one\n", err)


def test_mistakes_are_found_before_the_first_line(directory: str, tmp_path: Path) -> None:
    assert_refused(*_chat("the\n", "--model", directory, "--top-p", "3"), "chat: --top-p must be above 0")
    plain = str(tiny_language_model.write(tmp_path / "plain", {"tokenizer_config.json": None}))
    assert_refused(*_chat("the\n", "--model", plain), "has no chat template")
    nowhere = gguf_files.write(tmp_path / "model.gguf").with_name("other.gguf")
    assert_refused(*_chat("the\n", "--model", str(nowhere)), "other.gguf")
