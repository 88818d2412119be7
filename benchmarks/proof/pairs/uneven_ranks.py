"""Train a classifier of texts with two ranks; the texts are sorted by length and cut in the middle."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(200, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 128, 0.0, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)).mean(1))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lengths = sorted(torch.randint(16, 240, (4000,)).tolist())
    mine = lengths[dist.get_rank() * 2000 : (dist.get_rank() + 1) * 2000]
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        ids = torch.randint(200, (8, mine[torch.randint(2000, ())]))
        loss = nn.functional.cross_entropy(model(ids), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
