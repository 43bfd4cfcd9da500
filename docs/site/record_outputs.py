"""Record the outputs of the examples, which the site shows below their source.

    python docs/site/record_outputs.py [--programs FOLDER] [FILE ...]

Each FILE is one of the folder `examples`, such as `self_attention.py`; default: all. FOLDER holds the compiled programs
of `examples/cpp`; without it only Python files run. Examples with a model need MHA_NATIVE_MODEL,
MHA_NATIVE_LANGUAGE_MODEL and MHA_NATIVE_SPEECH_MODEL. An example without its packages keeps its recorded output.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
OUTPUTS = HERE / "outputs"


def files() -> list[Path]:
    """Return the examples of all languages."""
    return sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("cpp/*.c"), *EXAMPLES.glob("cpp/*.cpp")])


def recorded(example: Path) -> Path:
    """Return the path of the recorded output of an example."""
    return OUTPUTS / f"{example.name}.txt"


def output_of(example: Path, programs: Path | None = None) -> str:
    """Run an example, which must succeed, and return its standard output; empty without `programs` in C or C++."""
    if example.suffix == ".py":
        command = [sys.executable, str(example)]
    elif programs is not None:
        command = [str(programs / example.stem)]
    else:
        return ""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout


def words_of(output: str) -> list[str]:
    """Return the words of an output that are the same on every machine: without numbers and instruction sets."""
    return re.sub(
        r"computed with \w+", "computed with", re.sub(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?|inf", "0", output)
    ).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    OUTPUTS.mkdir(exist_ok=True)
    for example in files():
        if not options.files or example.name in options.files:
            output = output_of(example, options.programs)
            if output and not output.startswith("this example needs"):
                recorded(example).write_text(output, encoding="utf-8")
                print(f"{recorded(example)}: {len(output.splitlines())} lines")


if __name__ == "__main__":
    main()
