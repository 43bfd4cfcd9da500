"""A context over two Ray actors: decode, lose an actor, restore it, and continue."""

import sys
import textwrap

import numpy as np

import mha_native as mha
from mha_native.distributed import ShardedKVCache, WorkerError
from mha_native.distributed.ray_workers import RayWorkers

try:
    import ray
except ImportError:
    print("this example needs the package ray: pip install ray")
    sys.exit()

H, HK, D, T = 8, 2, 64, 3000

rng = np.random.default_rng(0)
query = rng.standard_normal((1, H, 1, D), dtype=np.float32)
key, value = rng.standard_normal((2, 1, HK, T, D), dtype=np.float32)

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
with RayWorkers(2) as workers:
    cache = ShardedKVCache(workers, batch_size=1, num_kv_heads=HK, capacity=4096, head_dim=D)
    cache.append(key[:, :, :-1], value[:, :, :-1])  # a prompt
    cache.append(key[:, :, -1:], value[:, :, -1:])  # and a new token
    out = cache.attend(query, is_causal=True)
    whole = mha.scaled_dot_product_attention(query, key, value)
    print(f"largest difference from one process: {np.abs(out - whole).max():.1e}")
    assert np.abs(out - whole).max() < 1e-6

    ray.kill(workers._actors[1])
    try:
        cache.attend(query)
    except WorkerError as error:
        print(textwrap.shorten(str(error), 110, placeholder=" ..."))
    # `restore` reads only the blocks of the lost actor again.
    cache.restore(lambda first, last: (key[:, :, first:last], value[:, :, first:last]))
    assert np.array_equal(cache.attend(query, is_causal=True), out)
    print("restored: the same bits")
ray.shutdown()
