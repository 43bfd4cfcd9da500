"""Train a layer of torch by Ray Train on two workers: its gradients are those of one process over the whole batch.

python examples/train_on_ray.py
"""

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

try:
    import ray
    import ray.train.torch
    import torch
except ImportError:
    sys.exit('this example needs the packages torch and ray: pip install torch "ray[train]"')

import tempfile
from pathlib import Path

from mha_native.interop.torch import TransformerEncoderLayer

WORKERS, E, H, F = 2, 64, 4, 128


def gradients(prepare, share):
    """Return the gradients of the mean loss over a share of the batch, by name."""
    torch.manual_seed(0)
    batch = torch.randn(8, 20, E)[share]
    layer = TransformerEncoderLayer(E, H, F, dropout=0, batch_first=True)
    model = prepare(layer)
    (model(batch) - batch.roll(1, dims=1)).square().mean().backward()  # each token becomes the token before it
    return {name: parameter.grad for name, parameter in layer.named_parameters()}


def work(config):
    """Train in one of the workers, and save the gradients of the first."""
    rank = ray.train.get_context().get_world_rank()
    averaged = gradients(ray.train.torch.prepare_model, slice(rank, None, WORKERS))
    if rank == 0:
        torch.save(averaged, config["file"])


ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "gradients"
    scaling = ray.train.ScalingConfig(num_workers=WORKERS)
    storage = ray.train.RunConfig(storage_path=folder)
    ray.train.torch.TorchTrainer(
        work, train_loop_config={"file": str(file)}, scaling_config=scaling, run_config=storage
    ).fit()
    averaged = torch.load(file)
ray.shutdown()

expected = gradients(lambda layer: layer, slice(None))
for name, gradient in expected.items():
    error = float((averaged[name] - gradient).abs().max())
    print(f"{name:26} up to {float(gradient.abs().max()):.3f}, largest difference {error:.0e}")
    assert error < 1e-5 * float(gradient.abs().max())
