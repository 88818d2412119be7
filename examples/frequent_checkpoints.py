"""Fit a wide residual network to a smooth function, saving a checkpoint every few steps.

python frequent_checkpoints.py --seconds 30
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--width", type=int, default=640)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    blocks = [Residual(args.width) for _ in range(4)]
    model = nn.Sequential(nn.Linear(16, args.width), *blocks, nn.Linear(args.width, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    with tempfile.TemporaryDirectory() as folder:
        end, step = time.monotonic() + args.seconds, 0
        while time.monotonic() < end:
            x = torch.rand(48, 16, device=device)
            target = torch.sin(4 * x).sum(dim=1, keepdim=True)
            loss = nn.functional.mse_loss(model(x), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0:
                save(Path(folder) / "last.pt", model, optimizer, step)
            if step % 50 == 1:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
