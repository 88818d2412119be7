"""Small training jobs whose traces lie beside this file. `record.py` runs and records them.

python jobs.py NAME
"""

import sys
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def network(width: int = 512, layers: int = 2) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


class Compressed(Dataset):
    def __init__(self, size: int) -> None:
        self.items = [zlib.compress(torch.rand(size).numpy().tobytes(), 1) for _ in range(64)]

    def __len__(self) -> int:
        return 64 * 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.decode(self.items[index % 64])

    def decode(self, item: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(item)), dtype=torch.float32)[:512]


def train(batches, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in batches:
        step(batch, model, optimizer)


def step(batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def forever(batch: torch.Tensor):
    while True:
        yield batch


def healthy() -> None:
    model = network()
    train(forever(torch.rand(256, 512)), model, torch.optim.AdamW(model.parameters(), fused=True))


def fed() -> None:
    """A loader without workers that has next to nothing to do."""
    model = network()
    loader = DataLoader(TensorDataset(torch.rand(8 * 5000, 512)), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for (batch,) in loader:
        step(batch.repeat(32, 1), model, optimizer)


def starved() -> None:
    model = network(layers=1)
    loader = DataLoader(Compressed(100_000), batch_size=8)
    train(loader, model, torch.optim.AdamW(model.parameters(), fused=True))


def slow_workers() -> None:
    model = network(layers=1)
    loader = DataLoader(Compressed(400_000), batch_size=8, num_workers=1)
    train(loader, model, torch.optim.AdamW(model.parameters(), fused=True))


def save(model: nn.Module, path: Path) -> None:
    torch.save(model.state_dict(), path)


def saving(every: int) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    path = Path(tempfile.mkdtemp()) / "model.pt"
    for number, batch in enumerate(forever(torch.rand(256, 512))):
        step(batch, model, optimizer)
        if number % every == 0:
            save(model, path)


def checkpoints() -> None:
    saving(3)


def rare_checkpoint() -> None:
    saving(8)


def single_tensor() -> None:
    model = network(width=256, layers=6)
    train(forever(torch.rand(128, 256)), model, torch.optim.Adam(model.parameters(), foreach=False))


def fused() -> None:
    model = network(width=256, layers=6)
    train(forever(torch.rand(128, 256)), model, torch.optim.Adam(model.parameters(), fused=True))


class Recurrent(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed = nn.Linear(64, 64)
        self.cell = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way != "no_gradient":
            x = self.embed(x)
        state = torch.zeros(x.shape[0], 64)
        if self.way == "unbind":
            return self.unbound(x, state)
        for t in range(x.shape[1]):
            state = torch.tanh(self.cell(x[:, t]) + state)
        return state

    def unbound(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for x_t in x.unbind(1):
            state = torch.tanh(self.cell(x_t) + state)
        return state


def loop() -> None:
    model = Recurrent("index")
    train(forever(torch.rand(32, 48, 64)), model, torch.optim.SGD(model.parameters(), fused=True))


def unbind() -> None:
    model = Recurrent("unbind")
    train(forever(torch.rand(32, 48, 64)), model, torch.optim.SGD(model.parameters(), fused=True))


def loop_without_gradient() -> None:
    model = Recurrent("no_gradient")
    train(forever(torch.rand(2, 48, 64)), model, torch.optim.SGD(model.parameters(), fused=True))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, c).permute(2, 0, 1, 3)
        q, k, v = qkv[0], qkv[1], qkv[2]
        return x + torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v


def layers() -> None:
    """Equal layers that index: no loop over a tensor."""
    model = nn.Sequential(*(Attention(64) for _ in range(12)))
    train(forever(torch.rand(4, 64, 64)), model, torch.optim.AdamW(model.parameters(), fused=True))


if __name__ == "__main__":
    {name: job for name, job in globals().items() if callable(job)}[sys.argv[1]]()
