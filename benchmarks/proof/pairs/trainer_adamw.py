"""Train a small Llama with Hugging Face's Trainer and the optimizer that older configurations name."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count=512):
        self.rows = torch.randint(500, (count, 64), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main():
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=500,
        max_position_embeddings=64,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=100_000,
            logging_steps=100,
            save_strategy="no",
            optim="adamw_torch",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
