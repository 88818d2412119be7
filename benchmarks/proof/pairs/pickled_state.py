"""Train a recommender; every five steps its whole state is pickled."""

import pickle
import tempfile
from pathlib import Path

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, users=4000, items=4000, width=64):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.score = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, users, items):
        return self.score(torch.cat([self.users(users), self.items(items)], dim=1))[:, 0]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Recommender()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pkl"
        for step in range(100_000):
            users, items = torch.randint(4000, (2, 256))
            loss = nn.functional.mse_loss(model(users, items), torch.rand(256))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                with path.open("wb") as file:
                    pickle.dump({name: tensor.numpy() for name, tensor in model.state_dict().items()}, file)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
