"""A training script whose device waits for its data loader: what most first captures show."""

from __future__ import annotations

import textwrap

STARVED = textwrap.dedent(
    '''
    """An ordinary training script whose loader decodes in the training process. It ends when a file is there."""
    import os
    import sys
    import time

    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)


    class Pictures(Dataset):
        def __len__(self):
            return 1 << 16

        def __getitem__(self, index):
            time.sleep(0.004)  # as reading and decoding would take
            return torch.randn(64), index % 10


    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stop, deadline = (sys.argv[1:] or ["stop"])[0], time.time() + 900
    for step, (pictures, labels) in enumerate(DataLoader(Pictures(), batch_size=8)):
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step > 12 and os.path.exists(stop)) or time.time() > deadline:
            break
    '''
)
"""Its argument, else `stop`, names the file that ends it after a dozen steps."""
