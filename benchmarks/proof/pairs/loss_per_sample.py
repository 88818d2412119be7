"""Train a small translation model; its loss is summed up over the positions in a loop."""

import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, symbols=200, width=64):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 128, 0.0, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        ids = torch.randint(200, (16, 48))
        target = ids.roll(1, 1)
        logits = model(ids)
        loss = 0
        for t in range(logits.shape[1]):
            loss = loss + nn.functional.cross_entropy(logits[:, t], target[:, t])
        loss = loss / logits.shape[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
