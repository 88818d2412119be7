"""Train a small language model; its checkpoints go to the disk before training goes on."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 512, 0.0, batch_first=True), 2)
        self.head = nn.Linear(width, 500)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


def save(state, path):
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"
        for step in range(100_000):
            ids = torch.randint(500, (4, 32))
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
