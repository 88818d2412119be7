"""Train on images that two workers decode, on as many cores as the machine has: more workers find no core."""

import os
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CORES = os.cpu_count()


class Packed(Dataset):
    def __init__(self, count=512):
        images = np.random.default_rng(0).integers(0, 64, (count, 3, 96, 96), dtype=np.uint8)
        self.images = [zlib.compress(image.tobytes(), 9) for image in images]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = np.frombuffer(zlib.decompress(self.images[index]), dtype=np.uint8).reshape(3, 96, 96)
        spectrum = np.fft.rfft2(image.astype(np.float32) / 64)
        return np.fft.irfft2(spectrum * np.random.uniform(0.9, 1.1)).astype(np.float32), index % 10


def main():
    torch.manual_seed(0)
    torch.set_num_threads(CORES)
    loader = DataLoader(Packed(), batch_size=32, shuffle=True, num_workers=CORES, persistent_workers=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 23 * 23, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    for epoch in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
