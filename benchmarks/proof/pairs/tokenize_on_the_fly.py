"""Classify short reviews with a small BERT; each text is tokenized when it is fetched."""

import random
import re
from collections import Counter

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

PIECES = re.compile(r"\w+|[^\w\s]")
WORDS = PIECES.findall("the a film plot actor scene long dull bright funny loved hated story end cast music great poor")


class Reviews(Dataset):
    def __init__(self, count=2000, length=64):
        draw = random.Random(0)
        self.texts = [" ".join(draw.choices(WORDS, k=6 * length)) + "!" for _ in range(count)]
        self.labels = [draw.randrange(2) for _ in range(count)]
        self.ids = {word: number for number, word in enumerate([*WORDS, "!"], start=1)}
        self.length = length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        pieces = [piece.lower() for piece in PIECES.findall(self.texts[index])]
        frequent = [word for word, _ in Counter(pieces).most_common(self.length)]
        ids = [self.ids[piece] for piece in pieces if piece in frequent][: self.length]
        return torch.tensor(ids), self.labels[index]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Reviews(), batch_size=32, shuffle=True)
    config = BertConfig(
        vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    for epoch in range(1000):
        for ids, labels in loader:
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
