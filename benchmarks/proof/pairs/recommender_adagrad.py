"""Train a recommender with one table per feature, as click-through models have them, by Adagrad."""

import torch
from torch import nn


class ClickModel(nn.Module):
    def __init__(self, features=26, rows=2000, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(features))
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width))
        self.top = nn.Sequential(nn.Linear((features + 1) * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, numbers, categories):
        rows = [table(column) for table, column in zip(self.tables, categories.unbind(1), strict=True)]
        return self.top(torch.cat([self.dense(numbers), *rows], dim=1))[:, 0]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ClickModel()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for step in range(100_000):
        numbers, categories = torch.rand(128, 13), torch.randint(2000, (128, 26))
        clicks = torch.randint(2, (128,)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, categories), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
