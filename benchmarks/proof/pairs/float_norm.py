"""Train a network in bfloat16 whose norms are computed in float32."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = F.layer_norm(x.float(), self.norm.normalized_shape, self.norm.weight.float(), self.norm.bias.float())
        return x + self.mix(y.to(x.dtype).transpose(1, 2)).transpose(1, 2)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer(256) for _ in range(4)), nn.Linear(256, 8)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for step in range(100_000):
        x = torch.rand(8, 256, 256, dtype=torch.bfloat16)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
