"""A script with Hugging Face's Trainer, as its users write them: python train_huggingface.py FOLDER [CHECKPOINT]"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = 12


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count=64):
        self.rows = torch.randint(61, (count, 16), generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def train(folder, trainer_class=Trainer, resume=None, settings=None, clip=0.5, **options):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    shape = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 61, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / "checkpoints"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        max_grad_norm=clip,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=6,
        logging_steps=1,
        seed=11,
        disable_tqdm=True,
        report_to=[],
        **settings or {},
    )
    data = Tokens()
    trainer = trainer_class(model=model, args=arguments, train_dataset=data, eval_dataset=Tokens(8), **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    train(*sys.argv[1:2], resume=(sys.argv[2:3] or [None])[0])
