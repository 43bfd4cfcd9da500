"""``python -m mha_native``: what it shows, and one sentence and exit code 2 for a mistake of the user."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import assert_refused, run

import mha_native
from mha_native.__main__ import main
from mha_native.commands import demo
from mha_native.commands.registry import COMMANDS


def test_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "mha_native", "info"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for word in (mha_native.__version__, *mha_native.available_isas(), "threads", "OpenMP"):
        assert word in result.stdout


def test_every_command_is_registered() -> None:
    folder = Path(mha_native.__file__).parent / "commands"
    commands = {path.stem for path in folder.glob("*.py") if re.search(r"^def run\(options", path.read_text(), re.M)}
    assert {command.__name__.rpartition(".")[2] for command in COMMANDS} == commands - {"embed_corpus", "embed_sparse"}


def test_as_a_script() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="mha_native")
    assert script.load() is main


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "info")
    assert (code, err) == (0, "")
    for word in ("built with", "this machine runs", "in use", "threads", "OpenMP runtime", np.__version__):
        assert word in out


def test_info_for_programs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run(capsys, "info", "--json")
    found = json.loads(out)
    assert (code, err, found["mha_native"]) == (0, "", mha_native.__version__)
    assert found["active_isa"] == mha_native.active_isa()
    assert found["available_isas"] == list(mha_native.available_isas())
    assert set(found["available_isas"]) <= found["isas"].keys()
    assert found["threads"] == mha_native.num_threads()
    _, shown, _ = run(capsys, "info")
    for value in (*found["isas"].values(), *found["dtypes"], *found["openmp_runtimes"], found["threads_reason"]):
        assert value in shown

    def refuse() -> str:
        raise ValueError("MHA_NATIVE_ISA: no such set")

    monkeypatch.setattr("mha_native.functions.runtime._core.active_isa", refuse)
    found = json.loads(run(capsys, "info", "--json")[1])
    assert (found["active_isa"], found["active_isa_reason"]) == (None, "MHA_NATIVE_ISA: no such set")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"mha_native {mha_native.__version__}\n")


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--cmake-dir", "mha_native-config.cmake"),
        ("--include-dir", "mha/mha.hpp"),
        ("--pkgconfig-dir", "mha_native.pc"),
    ],
)
def test_where_the_cpp_library_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # a path is not wrapped
    with pytest.raises(SystemExit) as done:
        main([option])
    captured = capsys.readouterr()
    assert (done.value.code, captured.err) == (0, "")
    assert captured.out.count("\n") == 1
    assert (Path(captured.out.rstrip("\n")) / name).is_file()


def test_a_wheel_without_the_cpp_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mha_native.__main__.__file__", str(tmp_path / "__main__.py"))
    with pytest.raises(SystemExit) as done:
        main(["--cmake-dir"])
    captured = capsys.readouterr()
    assert (done.value.code, captured.out) == (2, "")
    assert "--cmake-dir: this wheel came without the C++ library" in captured.err
    assert "pip install --force-reinstall . in a clone" in captured.err


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "demo")
    assert (code, err) == (0, "")
    for word in ["A", "dog", "ate", "the", "food", "because", "it", "was", "hungry"]:
        assert word in out
    for head in range(1, 9):
        assert f"head {head}" in out
    error = re.search(r"Largest error against the float64 reference: (\S+),", out)
    assert error
    assert 0 < float(error[1]) < 1e-5
    entropy = re.search(r"^Mean entropy, heads 1 to 8: ((?:\d\.\d\d ){8})nats, at most log\(9\) = 2\.20$", out, re.M)
    assert entropy
    assert all(1.5 < float(nats) < 2.2 for nats in entropy[1].split())
    assert "NumPy" in out


def test_demo_takes_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "demo", "--text", "Zwölf Boxkämpfer don't stop")
    for word in ("Zwölf", "Boxkämpfer", "don't", "stop", "4 words"):
        assert word in out


def test_demo_takes_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MAX_WORDS", 40)
    path = tmp_path / "text.txt"
    path.write_text("one two three " * 800, encoding="utf-8")
    code, out, _ = run(capsys, "demo", "--file", str(path))
    assert code == 0
    assert "the first 40 of 2,400 words" in out


def test_demo_is_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def tables(*arguments: str) -> str:
        out = run(capsys, "demo", *arguments)[1]
        return out[: out.index("Largest error")]

    assert tables() == tables("--seed", "0")
    assert tables() != tables("--seed", "1")


def test_demo_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "heads.png"
    code, out, err = run(capsys, "demo", "--plot", str(path))
    assert (code, err) == (0, "")
    assert str(path) in out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "words"), [("no/such/folder/heads.png", "cannot write"), ("heads.nonsense", "nonsense")]
)
def test_a_plot_that_cannot_be_written(
    name: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert_refused(*run(capsys, "demo", "--plot", str(tmp_path / name)), words)


def test_a_plot_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert_refused(*run(capsys, "demo", "--plot", "heads.png"), "matplotlib", "pip install")


@pytest.mark.parametrize("text", ["", "   ", "!? -- ..."])
def test_a_text_without_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(*run(capsys, "demo", "--text", text), "no words")


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "missing.txt")
    assert_refused(*run(capsys, "demo", "--file", path), path, "No such file")
    assert_refused(*run(capsys, "demo", "--file", str(tmp_path)), str(tmp_path))


def test_a_file_that_is_no_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00\xd8")
    assert_refused(*run(capsys, "demo", "--file", str(path)), "UTF-8")


def test_bench_has_a_help_of_its_own() -> None:
    command = [sys.executable, "-m", "mha_native", "bench", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: python -m mha_native bench ")
    for option in ("--quick", "--json", "--plot"):
        assert option in result.stdout


def test_bench(tmp_path: Path) -> None:
    # From a folder in which nothing of a checkout is found.
    written = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "mha_native",
        "bench",
        "--cases",
        "^sdpa-T16-D64$",
        "--peers",
        "",
        "--threads",
        "1",
    ]
    result = subprocess.run(
        [*command, "--rounds", "1", "--json", str(written)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "sdpa-T16-D64" in result.stdout
    [case] = json.loads(written.read_text(encoding="utf-8"))["cases"]
    [program] = case["programs"]
    assert program["contender"] == "mha_native"
    assert 0 < program["best_seconds"][0] < 1


def test_bench_says_what_can_be_mended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mha_native", "bench", "--cases", "no-such"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert_refused(result.returncode, result.stdout, result.stderr, "bench", "no-such")


def test_a_negative_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(*run(capsys, "demo", "--seed", "-1"), "--seed", "-1")


@pytest.mark.parametrize("arguments", [[], ["dance"], ["demo", "--seed", "x"], ["demo", "--text", "a", "--file", "b"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "usage: python -m mha_native" in capsys.readouterr().err


def test_an_impossible_instruction_set() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mha_native", "demo"],
        env=os.environ | {"MHA_NATIVE_ISA": "mmx"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert_refused(result.returncode, result.stdout, result.stderr, "MHA_NATIVE_ISA", "mmx")


def test_the_layer_in_numpy_computes_the_same() -> None:
    # What the demo is timed against has to be the same computation.
    layer = mha_native.MultiHeadAttention(demo.EMBED_DIM, demo.NUM_HEADS, seed=0)
    x = np.random.default_rng(0).standard_normal((20, demo.EMBED_DIM), dtype=np.float32)
    np.testing.assert_allclose(demo.numpy_layer(x, layer.state_dict()), layer(x), rtol=0, atol=1e-5)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cl"], "classify"),
        (["info"], "info"),
        (["--comp"], "--completion"),
        (["embed", "--we"], "--weight-dtype"),
        (["generate", "--max"], "--max-new-tokens --max-length"),
        (["info", "--js"], "--json"),
        (["bench", "--"], "--help"),  # whose other options are its own
        (["nothing", "--cm"], "--cmake-dir"),
        (["embed", "--dtype", "bf"], "bfloat16"),
        (["generate", "--file", "lin"], "lines.txt"),
        (["--completion", "f"], "fish"),
    ],
)
def test_bash_completes_commands_and_options(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").touch()
    program = f"""\
{_completion(capsys)}
complete -p mha_native | grep -q "_shtab_mha_native mha_native"
COMP_WORDS=(mha_native "$@")
COMP_CWORD={len(words)}
_shtab_mha_native mha_native "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
echo "${{COMPREPLY[@]}}"
"""
    command = ["bash", "-ec", program, "bash", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (result.stdout, result.stderr) == (f"{expected}\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(capsys: pytest.CaptureFixture[str]) -> None:
    program = f"{_completion(capsys, 'fish')}\ncomplete -C 'mha_native cl'\ncomplete -C 'mha_native embed --we'"
    result = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, timeout=60)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["classify", "--weight-dtype"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes(capsys: pytest.CaptureFixture[str]) -> None:
    program = 'autoload -U compinit; compinit -D\neval "$0"; echo $_comps[mha_native]; whence -w _shtab_mha_native'
    command = ["zsh", "-fc", program, _completion(capsys, "zsh")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("_shtab_mha_native\n_shtab_mha_native: function\n", "")


def _completion(capsys: pytest.CaptureFixture[str], *shell: str) -> str:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit, match="0"):
        main(["--completion", *shell])
    return capsys.readouterr().out


def test_completion_without_the_library(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert_refused(*run(capsys, "--completion"), "--completion needs shtab: pip install shtab")
