"""Tag sequences with a GRU cell that is called for one time step after another."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, symbols=64, width=128):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 12)

    def forward(self, ids):
        x = self.embed(ids)
        state = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        return self.head(torch.stack(states, dim=1))


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
