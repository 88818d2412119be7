"""Train a deep multilayer perceptron with Lightning as it should be."""

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Regressor(lightning.LightningModule):
    def __init__(self, width=384, depth=8):
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU())]
        self.net = nn.Sequential(nn.Linear(32, width), *layers, nn.Linear(width, 1))

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    x = torch.rand(2048, 32)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=256, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=1000, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Regressor(), loader)


if __name__ == "__main__":
    main()
