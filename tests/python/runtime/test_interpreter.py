"""The end of an interpreter while a thread computes, and interpreters beside the main one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import fresh_process
import pytest

import mha_native

# Short ones, so that one ends while the interpreter does: then its thread wants the interpreter back.
CALLS = {
    "attention": "x = np.ones((1, 8, 200, 64), np.float32); call = lambda: mha.scaled_dot_product_attention(x, x, x)",
    "layer": """
        x = np.ones((1, 50, 256), np.float32)
        layer = mha.MultiHeadAttention(256, 4, seed=0)
        cache = layer.new_cache(1, 50)
        def call():
            cache.clear()
            layer(x, cache=cache)""",
    "encoder": "x = np.ones((1, 20, 256), np.float32); e = mha.Encoder(4, 256, 4, 512, seed=0); call = lambda: e(x)",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_daemon_thread_inside_a_call_does_not_disturb_the_end(call: str, threads: int) -> None:
    code = f"""
import threading
started = threading.Event()
def loop(call):
    call()
    started.set()
    while True:
        call()
for _ in range({threads}):
    def define():
{textwrap.indent(textwrap.dedent(CALLS[call]).strip(), " " * 8)}
        return call
    threading.Thread(target=loop, args=(define(),), daemon=True).start()
started.wait()
print("the end")
"""
    result = fresh_process.run(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "the end\n", "")


SUB_INTERPRETER = """
import sys
{before}
if sys.version_info >= (3, 14):
    from concurrent import interpreters
    sub = interpreters.create()
    run = sub.exec
elif sys.version_info >= (3, 13):
    import _interpreters
    sub = _interpreters.create({config!r})
    run = lambda code: _interpreters.exec(sub, code)
elif sys.version_info >= (3, 12):
    import _xxsubinterpreters
    sub = _xxsubinterpreters.create(isolated={isolated})
    run = lambda code: _xxsubinterpreters.run_string(sub, code)
else:
    import _xxsubinterpreters
    sub = _xxsubinterpreters.create()
    run = lambda code: _xxsubinterpreters.run_string(sub, code)
import os
reader, writer = os.pipe()
run(f'''
import os
from importlib.util import module_from_spec, spec_from_file_location
for _ in range(2):
    try:
        spec = spec_from_file_location("mha_native._core", {path!r})
        spec.loader.exec_module(module_from_spec(spec))
    except ImportError as error:
        os.write({{writer}}, (str(error) + chr(10)).encode())
''')
os.close(writer)
print(os.fdopen(reader).read(), end="")
import mha_native as mha, numpy as np  # the main interpreter goes on
x = np.ones((2, 3), np.float32)
mha.scaled_dot_product_attention(x, x, x)
"""


@pytest.mark.parametrize("config", ["legacy", "isolated"])
@pytest.mark.parametrize("before", ["", "import mha_native"], ids=["first", "later"])
def test_a_sub_interpreter_cannot_import_and_says_so(config: str, before: str) -> None:
    if sys.version_info >= (3, 14) and config == "legacy":
        pytest.skip("concurrent.interpreters makes isolated ones only")
    code = SUB_INTERPRETER.format(
        before=before, config=config, isolated=config == "isolated", path=mha_native._core.__file__
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(messages := result.stdout.splitlines()) == 2, result.stdout
    # An isolated interpreter may refuse every module of that kind, with a message of Python's own.
    expected = "mha_native: a sub-interpreter cannot import" if config == "legacy" else "interpreter"
    assert all(expected in message for message in messages), messages
