"""Train a small Llama with two ranks; DistributedDataParallel sends its gradients in very small buckets."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=200,
        max_position_embeddings=32,
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = DistributedDataParallel(LlamaForCausalLM(config), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(100_000):
        ids = torch.randint(200, (2, 32))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
