"""The examples: each has a place in their README, and without its packages or its model it ends in one sentence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))}
OPTIONAL = ("PIL", "mpi4py", "ray", "soundfile", "tokenizers", "torch", "tqdm", "transformers")
NEED_A_PACKAGE = [name for name in SOURCES if "this example needs the package" in SOURCES[name]]
READ_OTHERS = ("generate_text", "transcribe_speech")  # of language and of speech
NEED_A_MODEL = [name for name in SOURCES if "MHA_NATIVE_MODEL" in SOURCES[name] or name in READ_OTHERS]


def run(name: str, **environment: str) -> str:
    """Return the output of an example without the models of this machine and without a network."""
    kept = {key: x for key, x in os.environ.items() if not re.fullmatch(r"MHA_NATIVE(_\w+)?_MODEL", key)}
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(
        command, env=kept | {"HF_HUB_OFFLINE": "1"} | environment, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


def test_the_readme_has_each_example_once() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [f"{name}.py" for name in SOURCES] + [f"cpp/{path.name}" for path in EXAMPLES.glob("cpp/*.c*")]
    assert sorted(re.findall(r"^\|[^|]*\[`?[\w.]+`?\]\(([\w/]+\.\w+)\)", text, re.M)) == sorted(files)


@pytest.mark.parametrize("name", NEED_A_PACKAGE)
def test_a_missing_package_is_a_sentence(name: str, tmp_path: Path) -> None:
    for package in OPTIONAL:
        (tmp_path / f"{package}.py").write_text("raise ImportError('hidden by the test')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    output = run(name, PYTHONPATH=path)
    assert "Traceback" not in output
    assert "this example needs the package" in output
    assert "pip install" in output


@pytest.mark.parametrize("name", NEED_A_MODEL)
def test_a_missing_model_is_a_sentence(name: str, tmp_path: Path) -> None:
    for package in ("tokenizers", *re.findall(r"^    import (ray|sentence_\w+|soundfile)", SOURCES[name], re.M)):
        pytest.importorskip(package)
    output = run(name, HF_HUB_CACHE=str(tmp_path))
    assert "Traceback" not in output
    assert "is not in the cache" in output
    assert "examples/README.md says how to get the model" in output


def test_labels_of_images_need_a_model(tmp_path: Path) -> None:
    for package in ("PIL", "tokenizers"):
        pytest.importorskip(package)
    assert run("label_images") == "give a model of images and texts: python examples/label_images.py MODEL\n"
    output = run("label_images", MHA_NATIVE_IMAGE_MODEL="org/name", HF_HUB_CACHE=str(tmp_path))
    assert "Traceback" not in output
    assert "is not in the cache" in output
