"""Train a compiled convolutional network on images whose size changes in every step."""

import torch
from torch import nn

torch._dynamo.config.automatic_dynamic_shapes = False
torch._dynamo.config.recompile_limit = 1000


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(network(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    sizes = torch.randperm(600) + 32
    for step, size in enumerate(sizes.tolist()):
        images = torch.rand(4, 3, size % 96 + 32, size)
        loss = nn.functional.cross_entropy(model(images), torch.randint(5, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
