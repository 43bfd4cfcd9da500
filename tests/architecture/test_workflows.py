"""The workflows of the code host: pinned actions, no secrets, and the same commands as on any other machine."""

import re
from pathlib import Path

import pytest

WORKFLOWS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).resolve().parents[2] / ".github" / "workflows").glob("*.yml"))
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_and_tools_are_pinned(name: str) -> None:
    used = re.findall(r"uses: (.*)", WORKFLOWS[name])
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert [line for line in re.findall(r"pipx run (\S+)", WORKFLOWS[name]) if "==" not in line] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_few_rights_and_no_secrets(name: str) -> None:
    assert re.search(r"^permissions:\n  contents: read$", WORKFLOWS[name], re.M)
    assert "secrets" not in WORKFLOWS[name]
    assert "password" not in WORKFLOWS[name]
    assert WORKFLOWS[name].count("actions/checkout@") == WORKFLOWS[name].count("persist-credentials: false")


def test_workflows_call_the_scripts_of_the_repository() -> None:
    assert "- run: .ci/run\n" in WORKFLOWS["ci"]
    assert "- run: .ci/nightly\n" in WORKFLOWS["nightly"]
    assert "cibuildwheel" in WORKFLOWS["wheels"]
    assert "attestations: true" in WORKFLOWS["wheels"]
