"""One cell of the fork matrix: a parent in some state starts a process, and that computes.

    python fork_cell.py METHOD IMPORTED COMPUTED DURING

METHOD is a start method of multiprocessing. IMPORTED says where the library is: "before" the start, or only in the
"child". COMPUTED says on whose threads the parent has computed before: "nothing", "ours", "torch", or the path of a
runtime of OpenMP. DURING is "idle", or "busy": another thread of the parent is at it again while the process starts.

Prints what the child reports: a digest of its results and the number of its threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import sys
import threading
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 60.0  # longer than any child computes: what takes longer hangs


def digest() -> str:
    """Of results that two threads compute, and of those of a layer over a cache."""
    import numpy as np

    import mha_native

    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 8, 200, 64), dtype=np.float32)
    out, lse = mha_native.scaled_dot_product_attention(query, key, value, return_lse=True, num_threads=2)
    layer = mha_native.MultiHeadAttention(256, 4, seed=0)
    cache = layer.new_cache(2, 100)
    y = layer(rng.standard_normal((2, 100, 256), dtype=np.float32), cache=cache, is_causal=True, num_threads=2)
    return hashlib.sha256(b"".join(array.tobytes() for array in (out, lse, y, cache.keys))).hexdigest()


def child(pipe: Connection) -> None:
    warnings.simplefilter("ignore")  # that a forked process computes on one thread
    first = digest()
    assert first == digest(), "two calls with different bits"
    pipe.send((first, len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0))


def computation(computed: str, seconds: int) -> Any:
    """What keeps two threads of `computed` busy, for about as long as that."""
    if computed == "ours":
        import numpy as np

        import mha_native

        x = np.ones((1, 8, 1 + 1000 * seconds, 64), np.float32)
        return lambda: mha_native.scaled_dot_product_attention(x, x, x, num_threads=2)
    if computed == "torch":
        import torch

        torch.set_num_threads(2)
        numbers = torch.ones(1000, 1000 * (1 + 10 * seconds))
        return lambda: numbers.exp().sum()
    if computed == "nothing":
        return lambda: time.sleep(seconds)
    # sleep() of the C library, in a parallel region of two threads.
    parallel = ctypes.CDLL(computed).GOMP_parallel
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    sleep = ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p)
    return lambda: parallel(sleep, seconds, 2, 0)


def main(method: str, imported: str, computed: str, during: str) -> None:
    warnings.simplefilter("ignore")  # of Python, that a process with threads forks
    context: Any = multiprocessing.get_context(method)
    if imported == "before":
        __import__("mha_native")
        if method == "forkserver":
            context.set_forkserver_preload(["mha_native"])
    computation(computed, 0)()
    if during == "busy":
        threading.Thread(target=computation(computed, 1), daemon=True).start()
        time.sleep(0.05)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(theirs,))
    process.start()
    theirs.close()
    if not ours.poll(SECONDS):
        process.kill()
        sys.exit("the child hangs")
    print(*ours.recv())
    process.join(SECONDS)
    sys.exit(process.exitcode)


if __name__ == "__main__":
    main(*sys.argv[1:])
