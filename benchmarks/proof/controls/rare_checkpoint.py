"""Train a small transformer on one core, with a checkpoint every thousand steps and a line every hundred."""

import tempfile
from pathlib import Path

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 2, 256, 0.0, batch_first=True), 3)
    model = nn.Sequential(nn.Embedding(300, 64), encoder, nn.Linear(64, 300))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 100_000):
            ids = torch.randint(300, (8, 64))
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 1000 == 0:
                torch.save(model.state_dict(), Path(folder) / "last.pt")
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
