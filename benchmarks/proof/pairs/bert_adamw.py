"""Pretrain a small BERT on masked tokens with AdamW as it comes."""

import torch
from transformers import BertConfig, BertForMaskedLM


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=2000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256
    )
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(100_000):
        ids = torch.randint(2000, (2, 32))
        labels = ids.masked_fill(torch.rand(ids.shape) > 0.15, -100)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
