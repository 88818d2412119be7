"""A script with Accelerate, as its users write them: python train_accelerate.py FOLDER [CHECKPOINT]"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

STEPS, SAVED = 12, 6


def train(folder, accelerator_class=Accelerator, resume=None, checkpointing=False, clip=0.5, **options):
    torch.set_num_threads(1)
    set_seed(7)
    accelerator = accelerator_class(gradient_accumulation_steps=2, **options)
    shape = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = LlamaForCausalLM(
        LlamaConfig(**shape, vocab_size=61, max_position_embeddings=16, bos_token_id=None, eos_token_id=None)
    )
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    rows = torch.randint(61, (64, 16), generator=torch.Generator().manual_seed(5))
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done = 0
    if resume:
        accelerator.load_state(resume)
        done = SAVED
    losses = []
    while done < STEPS:
        for ids in accelerator.skip_first_batches(loader, 2 * done) if done and not losses else loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if accelerator.sync_gradients:
                done += 1
                losses.append(norm.item())
                if done in (SAVED, STEPS):
                    accelerator.save_state(str(Path(folder) / f"checkpoint-{done}"))
                if done == STEPS:
                    break
    torch.save(losses, Path(folder) / "losses.pt")
    return accelerator, model, optimizer


if __name__ == "__main__":
    train(*sys.argv[1:2], resume=(sys.argv[2:3] or [None])[0])
