"""Fit a small network to records that one worker reads from a store, which answers each read after a while."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    LATENCY_S = 0.002

    def __init__(self, count=4096):
        self.samples = torch.rand(count, 256, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        time.sleep(self.LATENCY_S)
        sample = self.samples[index]
        return sample, sample.mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Records(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(1000):
        for samples, targets in loader:
            loss = nn.functional.mse_loss(model(samples)[:, 0], targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
