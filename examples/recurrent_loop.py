"""Train a hand-written gated recurrent network to repeat a sequence, one time step after another.

python recurrent_loop.py --seconds 30
"""

import argparse
import time

import torch
from torch import nn

LENGTH, SYMBOLS, WIDTH = 96, 32, 96


class GatedCell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        self.candidate = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, state], dim=1)
        gate = torch.sigmoid(self.gate(both))
        return gate * state + (1 - gate) * torch.tanh(self.candidate(both))


class Repeater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.cell = GatedCell(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        state = x.new_zeros(x.shape[0], WIDTH)
        outputs = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outputs.append(state)
        return self.head(torch.stack(outputs, dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Repeater().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)

    end, step = time.monotonic() + args.seconds, 0
    while time.monotonic() < end:
        ids = torch.randint(SYMBOLS, (args.batch, LENGTH), device=device)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
