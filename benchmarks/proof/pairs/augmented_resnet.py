"""Train a small residual network on images that are cropped, flipped and jittered when they are fetched."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count=2048):
        self.images = np.random.default_rng(0).integers(0, 255, (count, 40, 40, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].astype(np.float32) / 255.0
        top, left = np.random.randint(0, 8, 2)
        image = image[top : top + 32, left : left + 32]
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        for _ in range(3):
            image = image * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.02, image.shape)
            image = np.clip(image, 0, 1)
        image = (image - image.mean((0, 1))) / image.std((0, 1))
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)), index % 10


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Images(), batch_size=32, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        *(Block(16) for _ in range(2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    for epoch in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
