"""``python -m mha_native embed``: models and texts that cannot be embedded are one sentence, not a traceback."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tiny_bert
from command_line import assert_refused

# Root may read everything. The program is warm when it becomes somebody else, who may not read its modules either.
AS_NOBODY = (
    "import contextlib, os, sys\n"
    "from mha_native.__main__ import main\n"
    "with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null):\n"
    "    assert main(['embed', '--model', sys.argv[1], 'dog']) == 0\n"
    "if os.geteuid() == 0:\n"
    "    os.setegid(65534)\n"
    "    os.seteuid(65534)\n"
    "sys.exit(main(sys.argv[2:]))\n"
)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling", "lines.txt", "."]
)
def test_a_file_that_may_not_be_read(name: str) -> None:
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are for their owner alone
        Path(folder).chmod(0o755)
        directory = tiny_bert.write(Path(folder) / "model", files=files)
        (directory / "lines.txt").write_text("dog\n", encoding="utf-8")
        hidden, readable = directory / name, tiny_bert.write(Path(folder) / "readable")
        arguments = ["embed", "--model", str(directory), "--file", str(directory / "lines.txt")]
        program = [sys.executable, "-c", AS_NOBODY, str(readable), *arguments]
        hidden.chmod(0)
        try:
            result = subprocess.run(program, capture_output=True, text=True, timeout=60)
        finally:
            hidden.chmod(0o755)
    assert_refused(result.returncode, result.stdout, result.stderr, str(hidden), "Permission denied")
