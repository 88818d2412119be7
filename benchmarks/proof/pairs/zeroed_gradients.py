"""Train a deep, narrow network; gradients of two small batches are added up in tensors that are zeroed."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(30_000, 64), *(nn.Linear(64, 64) for _ in range(30)), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for step in range(100_000):
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(torch.randint(30_000, (8,))), torch.randint(2, (8,)))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
