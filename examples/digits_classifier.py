"""Classify handwritten digits with a small convolutional network, with images decoded and augmented on the fly.

python digits_classifier.py --seconds 30
"""

import argparse
import time
import zlib

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CompressedDigits(Dataset):
    """Digits kept compressed, as image files would be; each access decodes, enlarges and rotates one."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = [zlib.compress(image.astype(np.float32).tobytes()) for image in digits.images]
        self.labels = digits.target

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = np.frombuffer(zlib.decompress(self.images[index]), dtype=np.float32).reshape(8, 8)
        image = ndimage.zoom(image / 16.0, 4, order=3)
        image = ndimage.rotate(image, np.random.uniform(-15, 15), reshape=False, order=3)
        return torch.from_numpy(np.ascontiguousarray(image))[None], int(self.labels[index])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(CompressedDigits(), batch_size=args.batch, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    criterion = nn.CrossEntropyLoss()

    end, step = time.monotonic() + args.seconds, 0
    while time.monotonic() < end:
        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 1:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            if time.monotonic() >= end:
                break


if __name__ == "__main__":
    main()
