"""The command line, called from inside the process, and how it must refuse."""

from __future__ import annotations

import re

import pytest

from mha_native.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``python -m mha_native`` with `arguments`."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_refused(code: int, out: str, err: str, *words: str) -> None:
    """The command refused with one sentence that holds `words`, and exit code 2."""
    assert code == 2
    assert out == ""
    assert re.match("mha_native( bench)?: ", err)
    assert err.count("\n") == 1
    for word in words:
        assert word in err, err
