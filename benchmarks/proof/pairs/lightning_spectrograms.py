"""Classify sounds with Lightning; each spectrogram is computed when it is fetched."""

import warnings

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Sounds(Dataset):
    def __init__(self, count=1024, samples=8192):
        self.waves = np.random.default_rng(0).standard_normal((count, samples)).astype(np.float32)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        frames = np.lib.stride_tricks.sliding_window_view(self.waves[index], 256)[::128]
        spectrum = np.abs(np.fft.rfft(frames * np.hanning(256), axis=1))[:, :64]
        return np.log1p(spectrum).astype(np.float32)[None], index % 8


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, 8),
        )

    def training_step(self, batch, number):
        waves, labels = batch
        return nn.functional.cross_entropy(self.net(waves), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    loader = DataLoader(Sounds(), batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=1000, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
