"""Learn to reverse sequences with an LSTM decoder that attends to its encoder, one position after another."""

import torch
from torch import nn


class Reverser(nn.Module):
    def __init__(self, symbols=40, width=96):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.cell = nn.LSTMCell(2 * width, width)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids, target):
        memory, _ = self.encoder(self.embed(ids))
        given = self.embed(target)
        hidden, cell = memory[:, -1], torch.zeros_like(memory[:, -1])
        outputs = []
        for t in range(given.shape[1]):
            weights = torch.softmax(torch.einsum("btw,bw->bt", memory, hidden), dim=1)
            context = torch.einsum("bt,btw->bw", weights, memory)
            hidden, cell = self.cell(torch.cat([given[:, t], context], dim=1), (hidden, cell))
            outputs.append(self.head(hidden))
        return torch.stack(outputs, dim=1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        ids = torch.randint(40, (16, 40))
        target = ids.flip(1)
        loss = nn.functional.cross_entropy(model(ids, target).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
