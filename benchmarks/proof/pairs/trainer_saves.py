"""Train a small GPT-2 with Hugging Face's Trainer, with a checkpoint every five steps."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count=512):
        self.rows = torch.randint(500, (count, 32), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main():
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=500, n_positions=64, n_embd=128, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=100_000,
            logging_steps=100,
            save_steps=5,
            save_total_limit=2,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
