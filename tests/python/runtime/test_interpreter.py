"""The end of an interpreter while a thread computes."""

from __future__ import annotations

import textwrap

import fresh_process
import pytest

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
