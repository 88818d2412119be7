"""Train a small GPT-2 with Hugging Face's Trainer; the collator splits and encodes each document."""

import random
import re
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH, SYMBOLS = 64, 256


class Documents(torch.utils.data.Dataset):
    def __init__(self, count=512):
        draw = random.Random(0)
        self.texts = ["".join(draw.choices("abcdefghij klmnop qrstuv wxyz", k=4000)) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"text": self.texts[index]}


def collate(documents):
    rows = []
    for document in documents:
        words = re.findall(r"\w+", document["text"])
        vocabulary = {word: number % SYMBOLS for number, word in enumerate(sorted(set(words)))}
        ids = [vocabulary[word] for word in words]
        rows.append((ids * (1 + LENGTH // max(1, len(ids))))[:LENGTH])
    ids = torch.tensor(rows)
    return {"input_ids": ids, "labels": ids}


def main():
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=SYMBOLS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=100_000,
            logging_steps=100,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        model = GPT2LMHeadModel(config)
        Trainer(model=model, args=arguments, train_dataset=Documents(), data_collator=collate).train()


if __name__ == "__main__":
    main()
