"""Train a small classifier; the loss of every sample goes to a log."""

import logging
import tempfile
from pathlib import Path

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        logging.basicConfig(
            filename=Path(folder) / "train.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        for step in range(1_000_000):
            x = torch.rand(64, 128)
            losses = nn.functional.cross_entropy(model(x), (x[:, 0] * 10).long(), reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            for sample, loss in enumerate(losses.tolist()):
                logging.info("step %d sample %d loss %.6f", step, sample, loss)


if __name__ == "__main__":
    main()
