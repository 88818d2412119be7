"""Tag sequences with torch's own GRU over the whole sequence."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, symbols=64, width=128):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.layer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, ids):
        states, _ = self.layer(self.embed(ids))
        return self.head(states)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        ids = torch.randint(64, (16, 64))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten() % 12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
