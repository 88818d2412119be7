"""A script with Lightning, as its users write them: python train_lightning.py FOLDER [CHECKPOINT]"""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 12


class Wrapped(lightning.LightningModule):
    """A model of another library inside; the module itself is never called."""

    def __init__(self):
        super().__init__()
        shape = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
        sizes = {"vocab_size": 61, "max_position_embeddings": 16, "bos_token_id": None, "eos_token_id": None}
        self.net = LlamaForCausalLM(LlamaConfig(**shape, **sizes))
        self.losses = []

    def training_step(self, ids, number):
        loss = self.net(input_ids=ids, labels=ids).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, ids, number):
        self.losses.append(self.net(input_ids=ids, labels=ids).loss.item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Own(Wrapped):
    """Its own layers, called by no forward."""

    def __init__(self):
        super().__init__()
        self.net = None
        self.embed = nn.Embedding(61, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True) for _ in range(4))
        self.head = nn.Linear(32, 61)

    def training_step(self, ids, number):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        loss = F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())
        self.losses.append(loss.item())
        return loss

    validation_step = None


def train(folder, module_class=Wrapped, resume=None, clip=0.5, **options):
    torch.set_num_threads(1)
    lightning.seed_everything(7, verbose=False)
    module = module_class()
    rows = torch.randint(61, (64, 16), generator=torch.Generator().manual_seed(5))
    saving = ModelCheckpoint(Path(folder) / "checkpoints", "{step}", every_n_train_steps=6, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=2,
        gradient_clip_val=clip,
        callbacks=[saving],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=8,
        **options,
    )
    validated = torch.utils.data.DataLoader(rows[:8], batch_size=4) if module.validation_step else None
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=2), validated, ckpt_path=resume)
    torch.save(module.losses, Path(folder) / "losses.pt")
    return trainer


if __name__ == "__main__":
    train(*sys.argv[1:2], resume=(sys.argv[2:3] or [None])[0])
