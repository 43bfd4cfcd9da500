"""``python -m mha_native generate``: a prompt is continued on the terminal, the lines of a file as JSON lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_language_model
from command_line import assert_refused, run

from mha_native.models import CausalLM
from mha_native.serving import Batcher

SPEED = r"mha_native: \d+ tokens read in \d+\.\d\d s, \d+ generated, [\d,]+\.\d tokens a second\n"
SPEED_OF_FILE = r"mha_native: \d+ tokens read and 44 generated in \d+\.\d\d s, [\d,]+\.\d tokens a second\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny"))


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_prompt_is_continued(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = CausalLM.from_pretrained(directory).generate("the é", max_new_tokens=9)
    code, out, err = run(capsys, "generate", "--model", directory, "--prompt", "the é", "--max-new-tokens", "9")
    assert (code, out) == (0, f"{expected}\n")
    assert re.fullmatch(SPEED, err)


def test_options_are_those_of_the_model(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = CausalLM.from_pretrained(directory, weight_dtype="int8", max_length=20)
    options: dict[str, Any] = {
        "temperature": 1.5, "top_k": 90, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1,
        "frequency_penalty": 0.5, "presence_penalty": -0.25, "min_new_tokens": 2, "seed": 3
    }  # fmt: skip
    free = model.generate("the", **options)
    stop = free[len(free) // 2]
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    arguments += ["--weight-dtype", "int8", "--max-length", "20", "--stop", stop, "--stop", "not there"]
    code, out, _ = run(capsys, "generate", "--model", directory, "--prompt", "the", *arguments)
    assert (code, out) == (0, f"{free[: free.index(stop)]}\n")


def test_a_prompt_is_continued_with_drafts(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = CausalLM.from_pretrained(directory).generate("the the the", max_new_tokens=9)
    for draft, report in (("prompt-lookup", ".*"), (directory, r", \d+ of \d+ drafted tokens accepted")):
        arguments = ("--max-new-tokens", "9", "--draft", draft, "--num-draft-tokens", "3")
        code, out, err = run(capsys, "generate", "--model", directory, "--prompt", "the the the", *arguments)
        assert (code, out) == (0, f"{expected}\n")
        assert re.fullmatch(SPEED.replace("\\n", f"{report}\\n"), err)


def test_a_prompt_is_answered(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    expected = CausalLM.from_pretrained(directory).chat([{"role": "user", "content": "the"}], max_new_tokens=5)
    arguments = ["--prompt", "the", "--chat", "--max-new-tokens", "5"]
    code, out, _ = run(capsys, "generate", "--model", directory, *arguments)
    assert (code, out) == (0, f"{expected}\n")


def test_lines_of_a_file(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [f"the {'a' * i} é" for i in range(11)]  # more than are continued together
    path, output = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(prompts), encoding="utf-8")
    texts = CausalLM.from_pretrained(directory).generate(prompts, max_new_tokens=4)
    arguments = ["generate", "--model", directory, "--file", str(path), "--max-new-tokens", "4"]
    code, out, err = run(capsys, *arguments, "--output", str(output))
    assert (code, out) == (0, f"11 texts: {output}\n")
    assert re.fullmatch(SPEED_OF_FILE, err)
    expected = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    assert _lines(output.read_text(encoding="utf-8")) == expected
    code, out, _ = run(capsys, *arguments)
    assert (code, _lines(out)) == (0, expected)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.3, "seed": 4}, {"stop": "a", "repetition_penalty": 1.2}], ids=str
)
def test_lines_that_end_at_different_places(
    options: dict[str, Any], directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line has the text that it has in a list of eight, in the order of the lines."""
    prompts = [[f"the {'a' * (5 * (i % 3))}", "é", "x y"][i % 3] + "b" * (i % 7) for i in range(20)]
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(prompts), encoding="utf-8")
    model = CausalLM.from_pretrained(directory)
    lists = (prompts[begin : begin + 8] for begin in range(0, len(prompts), 8))
    expected = [text for some in lists for text in model.generate(some, max_new_tokens=25, **options)]
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["generate", "--model", directory, "--file", str(path), "--max-new-tokens", "25", *arguments]
    code, out, _ = run(capsys, *command)
    assert (code, [line["text"] for line in _lines(out)]) == (0, expected)
    assert len(set(expected)) > 10


def test_a_short_line_does_not_wait_for_a_long_one(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 lines at once, one long and the others short, each short one makes room for the next line."""
    model, steps = CausalLM.from_pretrained(directory), 0
    original = Batcher.run_step

    def run_step(batcher: Batcher) -> bool:
        nonlocal steps
        steps += 1
        return original(batcher)

    monkeypatch.setattr(Batcher, "run_step", run_step)
    prompts = ["the", *["a" * 45] * 21]  # the others end where the positions do, after 4 tokens
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    arguments = ["--file", str(tmp_path / "prompts.txt"), "--max-new-tokens", "40"]
    code, out, _ = run(capsys, "generate", "--model", directory, *arguments)
    assert (code, len(_lines(out))) == (0, len(prompts))
    assert max(len(model.generate_tokens(prompt, max_new_tokens=40)) for prompt in prompts[1:]) == 4
    assert 40 <= steps < 50, "8 at a time, each list as long as its longest, they would take 48 steps and more"


def test_objects_in_a_file(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    path = tmp_path / "prompts.jsonl"
    given = [{"id": 1, "prompt": "the"}, {"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a"}]
    path.write_text("".join(f"{json.dumps(value)}\n" for value in given))
    model = CausalLM.from_pretrained(directory)
    code, out, _ = run(capsys, "generate", "--model", directory, "--file", str(path), "--max-new-tokens", "4")
    texts = [model.generate("the", max_new_tokens=4), model.chat(given[1]["messages"], max_new_tokens=4)]
    texts.append(model.generate("a", max_new_tokens=4))
    assert (code, [line["text"] for line in _lines(out)]) == (0, texts)
    assert _lines(out)[0]["id"] == 1
    code, out, _ = run(capsys, "generate", "--model", directory, "--file", str(path), "--chat", "--max-new-tokens", "4")
    assert _lines(out)[2]["text"] == texts[1]


def test_standard_input(directory: str) -> None:
    command = [sys.executable, "-m", "mha_native", "generate", "--model", directory, "--max-new-tokens", "4"]
    result = subprocess.run([*command, "--file", "-"], input=b"the\na\n", capture_output=True, timeout=60, check=True)
    model = CausalLM.from_pretrained(directory)
    assert [line["text"] for line in _lines(result.stdout.decode())] == model.generate(["the", "a"], max_new_tokens=4)
    # As one prompt, of which only the last line ending is left out.
    result = subprocess.run(
        [*command, "--prompt", "-"], input=b"the\na \n", capture_output=True, timeout=60, check=True
    )
    assert result.stdout.decode() == f"{model.generate('the' + chr(10) + 'a ', max_new_tokens=4)}\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_text_within_a_line(name: str, tmp_path: Path) -> None:
    directory = tiny_language_model.write(tmp_path / "long", n_positions=100_000)
    command = [sys.executable, "-m", "mha_native", "generate", "--model", str(directory)]
    command += ["--prompt", "the", "--max-new-tokens", "99999"]
    number = signal.Signals[name]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # shells make processes in the background ignore it
    ) as process:
        assert process.stdout
        assert process.stderr
        first = process.stdout.read(10)
        process.send_signal(number)
        rest, errors = process.stdout.read(), process.stderr.read().decode()
        code = process.wait(60)
    text = (first + rest).decode()  # of whole characters
    if name == "SIGINT":
        assert code == 130
        assert text.endswith("\n")
        assert re.fullmatch(SPEED + "mha_native: interrupted\n", errors)
    else:
        assert (code, errors) == (143, "mha_native: ended by SIGTERM\n")


def test_what_the_terminal_cannot_show(directory: str) -> None:
    command = [sys.executable, "-m", "mha_native", "generate", "--model", directory, "--prompt", "the é"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment)
    expected = CausalLM.from_pretrained(directory).generate("the é")
    assert result.stdout.decode("ascii").rstrip("\n") == expected.encode("ascii", "replace").decode().rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "the", "--temperature", "-1"], ["temperature must be 0 or above"]),
        (["--prompt", ""], ["prompts must have a token"]),
        (["--prompt", "a" * 300], ["no more tokens than the model has positions, 48; got 300"]),
        (["--prompt", "the", "--chat", "--stop", ""], ["stop must be no empty str"]),
        (["--file", "nowhere.txt"], ["cannot read nowhere.txt"]),
        (["--file", "lines.jsonl"], ["lines.jsonl, line 1: it must have a prompt or messages, one of them"]),
        (["--file", "prompts.txt", "--output", "out.csv"], ["--output must end in .jsonl"]),
        (["--file", "prompts.txt", "--output", "prompts.txt"], ["--output"]),
    ],
    ids=str,
)
def test_what_the_user_can_mend(
    arguments: list[str],
    words: list[str],
    directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.jsonl").write_text('{"prompt": "a", "messages": []}\n')
    (tmp_path / "prompts.txt").write_text("the\n")
    assert_refused(*run(capsys, "generate", "--model", directory, *arguments), *words)


NUMBERS = {
    "--max-new-tokens": ["0", "-1", "x", "1.5", "1" + "0" * 30],
    "--temperature": ["-1", "nan", "inf", "x"],
    "--top-k": ["-1", "0", "x", "1" + "0" * 30],
    "--top-p": ["0", "1.5", "nan", "x"],
    "--min-p": ["-1", "2", "nan", "x"],
    "--repetition-penalty": ["0", "-1", "inf", "x"],
    "--frequency-penalty": ["2.5", "nan", "x"],
    "--presence-penalty": ["-2.5", "x"],
    "--min-new-tokens": ["-1", "257", "x"],
    "--seed": ["-1", "x", "1.5"],
    "--max-length": ["0", "-1", "x", "49", "1" + "0" * 30],
    "--stop": [""],
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in NUMBERS.items() for value in values]
)
def test_a_message_names_the_option(
    option: str, value: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--model", directory, "--prompt", "the", f"{option}={value}"]
    code: Any
    try:
        code, _, err = run(capsys, *arguments)
    except SystemExit as error:  # of argparse
        code, err = error.code, capsys.readouterr().err
    assert code == 2
    assert re.search(rf"(argument |: ){option}( must|: )", err), err
    assert "count" not in err


def test_wrong_usage(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["--prompt", "a", "--file", "b"],
        ["--prompt", "a", "--output", "b.jsonl"],
        ["--file", "b", "--draft", "prompt-lookup"],
        ["--prompt", "a", "--num-draft-tokens", "3"],
    ):
        with pytest.raises(SystemExit) as caught:
            run(capsys, "generate", "--model", directory, *arguments)
        assert caught.value.code == 2
