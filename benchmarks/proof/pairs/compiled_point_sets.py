"""Train a compiled network on sets of any number of points; each new number is compiled."""

import torch
from torch import nn

torch._dynamo.config.recompile_limit = 1000


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = nn.Linear(64, 4)

    def forward(self, points):
        return self.head(self.each(points).amax(0))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(PointNet(), backend="aot_eager", dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    numbers = torch.randperm(4000) + 64
    for step, number in enumerate(numbers.tolist()):
        loss = nn.functional.cross_entropy(model(torch.rand(number, 3)), torch.randint(4, ()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
