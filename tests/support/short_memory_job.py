"""Trains a stack of blocks on made-up numbers and prints its losses to the last bit. It knows nothing of tightship.

Most of its memory is weights, gradients and Adam's state; a step computes little.
"""

import sys

import torch
from torch import nn

WIDTH, LAYERS = 320, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Stack()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(int(sys.argv[1])):
    ids = torch.randint(100, (2, 8))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"{step} {loss.item().hex()}\n")
    sys.stdout.flush()
