"""Train a transformer on tokens that one worker cuts; its batches are there long before they are needed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, length=64):
        self.tokens = torch.randint(300, (100_000,), generator=torch.Generator().manual_seed(0))
        self.length = length

    def __len__(self):
        return len(self.tokens) - self.length

    def __getitem__(self, index):
        return self.tokens[index : index + self.length]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Windows(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True), 2)
    model = nn.Sequential(nn.Embedding(300, 128), encoder, nn.Linear(128, 300))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for epoch in range(1000):
        for step, ids in enumerate(loader):
            loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
