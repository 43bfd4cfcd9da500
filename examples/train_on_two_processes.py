"""Train layers of torch on two processes: gradients and weights are those of one process over the whole batch.

    python examples/train_on_two_processes.py

Each process trains on half of each batch. DistributedDataParallel averages the gradients over the network, here by gloo
over the loopback address.
"""

import os
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from torch import distributed, multiprocessing, nn
except ImportError:
    sys.exit("this example needs the package torch: pip install torch")

import mha_native as mha
from mha_native.interop.torch import TransformerEncoderLayer

PROCESSES, STEPS = 2, 5
E, H, F = 64, 4, 128
torch.manual_seed(0)
batches = torch.randn(STEPS, 8, 20, E)  # [STEPS, B, T, E]


def new_model():
    torch.manual_seed(1)
    layer = TransformerEncoderLayer(E, H, F, dropout=0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def train(model, share):
    """Train on a share of each batch; return the losses, the gradients of the first step and the weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, first = [], None
    for batch in batches[:, share]:
        optimizer.zero_grad()
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()  # each token becomes the token before it
        loss.backward()
        if first is None:
            first = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), first, [parameter.detach() for parameter in model.parameters()]


def work(rank, folder):
    """Train in one of the processes, and save the result of the first."""
    torch.set_num_threads(1)
    mha.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    model = nn.parallel.DistributedDataParallel(new_model())
    losses, first, weights = train(model, slice(rank, None, PROCESSES))
    distributed.all_reduce(losses)
    if rank == 0:
        torch.save((losses / PROCESSES, first, weights), f"{folder}/result")
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the loopback address; leave this out for several machines
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder,), nprocs=PROCESSES)
        losses, gradients, weights = torch.load(Path(folder) / "result")
    expected_losses, expected, expected_weights = train(new_model(), slice(None))

    for step, (two, one) in enumerate(zip(losses, expected_losses, strict=True)):
        print(f"step {step}: loss {two:.5f} on two processes, {one:.5f} on one")
    largest = max(float(gradient.abs().max()) for gradient in expected)
    error = max(float((ours - whole).abs().max()) for ours, whole in zip(gradients, expected, strict=True))
    print(f"gradients of step 0: largest difference {error:.0e}, in gradients of up to {largest:.2f}")
    assert error < 1e-5 * largest
    torch.testing.assert_close(losses, expected_losses)
    for ours, whole in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-4)
