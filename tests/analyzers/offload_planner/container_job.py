"""Small models with blocks in containers, or without: `python container_job.py FOLDER NAME...`.

Records three steps of each into FOLDER/NAME.json, with stacks and shapes, and prints as JSON what the runtime makes of
it: the parameters of its layers, or its refusal.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.blocks import find_blocks

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH = 32


class Chain(nn.Sequential):
    """A Sequential by another name."""


class Attributes(nn.Module):
    """Two like layers that are in no container."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Stages(nn.Module):
    """Two stacks that are attributes, as those of a residual network."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Sequential(*(Attributes() for _ in range(count))) for count in (2, 3))

    def forward(self, x):
        return self.second(self.first(x))


class Listed(nn.Module):
    """Blocks in a ModuleList, with two norms beside them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attributes() for _ in range(4))
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.before(x)
        for number in range(len(self.blocks)):
            x = self.blocks[number](x)
        return self.after(x)


class Held(Listed):
    """The same, on a machine that keeps the thread waiting for longer than the blocks take."""

    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


def unlike(kind):
    return kind(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH))


MODELS = {
    "unlike": lambda: unlike(nn.Sequential),
    "unlike_chain": lambda: unlike(Chain),
    "attributes": Attributes,
    "like": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.0), nn.Linear(WIDTH, WIDTH)),
    "nested": lambda: nn.Sequential(nn.LayerNorm(WIDTH), Chain(*(Attributes() for _ in range(3)))),
    "stages": Stages,
    "listed": Listed,
    "held": Held,
}


def record(model, path):
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as recording:
        for _ in range(3):
            model(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    recording.export_chrome_trace(path)


def found(model):
    try:
        return [sum(p.numel() for p in block.parameters) for block in find_blocks(model)]
    except OffloadError as error:
        return str(error)


if __name__ == "__main__":
    said = {}
    for name in sys.argv[2:]:
        model = MODELS[name]()
        record(model, f"{sys.argv[1]}/{name}.json")
        said[name] = found(model)
    sys.stdout.write(json.dumps(said) + "\n")
