"""Train a ranking model beside an index of Python objects, which every fifth step searches for garbage."""

import gc

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    index = [{"id": number, "words": [str(number), str(number + 1)]} for number in range(100_000)]
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        x = torch.rand(128, 256)
        rank = torch.tensor([float(index[int(row)]["id"]) for row in (x[:, 0] * 1000).tolist()])
        loss = nn.functional.mse_loss(model(x)[:, 0], rank / 1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            gc.collect()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
