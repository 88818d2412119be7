"""An ordinary training of five like blocks: `python block_job.py TRACE record [recompute]`, or without arguments.

With `record` three steps are recorded into TRACE, with stacks and shapes; else the weights after eight steps are
printed as a hash.
"""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=64, layers=5):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "recompute" in sys.argv else block(x)
        return self.head(x)


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def step():
        for _ in range(2):
            ids = torch.randint(50, (4, 32))
            nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    if "record" in sys.argv:
        from torch.profiler import ProfilerActivity, profile

        step()
        with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as recording:
            for _ in range(3):
                step()
        recording.export_chrome_trace(sys.argv[1])
    else:
        for _ in range(8):
            step()
        sys.stdout.write(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
