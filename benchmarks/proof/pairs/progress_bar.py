"""Fit a small network; a progress bar is redrawn with its metrics in every step."""

import torch
from torch import nn
from tqdm import tqdm


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    bar = tqdm(total=10_000_000)
    for step in range(10_000_000):
        x = torch.rand(64, 32)
        loss = nn.functional.mse_loss(model(x)[:, 0], x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item(), lr=optimizer.param_groups[0]["lr"], step=step)
        bar.update(1)
    bar.close()


if __name__ == "__main__":
    main()
