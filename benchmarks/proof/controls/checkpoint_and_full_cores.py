"""Train with large products on all cores, and pack checkpoints hard: a thread that packs has no core to do it on."""

import copy
import io
import os
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn


def save(state, path):
    memory = io.BytesIO()
    torch.save(state, memory)
    path.write_bytes(zlib.compress(memory.getvalue(), 1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packed.pt"
        for step in range(100_000):
            x = torch.rand(512, 512)
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                save({"model": model.state_dict(), "average": average.state_dict(), "step": step}, path)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
