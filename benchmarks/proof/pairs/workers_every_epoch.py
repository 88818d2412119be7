"""Fine-tune a small vision transformer on few images per epoch; the loader starts its workers for each epoch."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification


class FewImages(Dataset):
    def __init__(self, count=128):
        self.images = np.random.default_rng(0).random((count, 3, 64, 64), dtype=np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        for _ in range(4):
            image = np.clip(image + np.random.normal(0, 0.05, image.shape), 0, 1)
        return image.astype(np.float32), index % 4


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(FewImages(), batch_size=16, shuffle=True, num_workers=2)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = ViTForImageClassification(ViTConfig(image_size=64, patch_size=16, num_labels=4, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
