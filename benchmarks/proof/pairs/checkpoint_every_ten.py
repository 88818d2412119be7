"""Train a wide autoencoder on one core, with a checkpoint every ten steps."""

import tempfile
from pathlib import Path

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 64), nn.Linear(64, 1024), nn.GELU())
    model.append(nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "autoencoder.pt"
        for step in range(100_000):
            x = torch.rand(64, 512)
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
