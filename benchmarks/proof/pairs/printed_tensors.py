"""Fit a small network; every step prints its gradients, left from a search for a bug."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(1_000_000):
        x = torch.rand(128, 64)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] * 8).long())
        optimizer.zero_grad()
        loss.backward()
        print("step", step, "loss", loss.item(), "gradient", model[0].weight.grad, flush=True)
        optimizer.step()


if __name__ == "__main__":
    main()
