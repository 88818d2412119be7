"""Fit a small network to tensors that are in memory; workers would only copy them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.rand(50_000, 32)
    loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for epoch in range(1000):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs)[:, 0], targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
