"""Train a compiled sentence encoder on batches of any length, compiled once for all of them."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(200, width)
        self.mix = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.mix(x)
        return self.head(x.mean(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(Encoder(), backend="aot_eager", dynamic=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    lengths = torch.randperm(900) + 16
    for step, length in enumerate(lengths.tolist()):
        ids = torch.randint(200, (8, length))
        loss = nn.functional.cross_entropy(model(ids), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
