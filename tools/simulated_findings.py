"""What the rules would say of the simulated fleet: findings with their evidence, opportunities, a trace's summary."""

from __future__ import annotations

from typing import Any

from tightship_platform.units import NS_PER_MS

FINDINGS = (
    (
        "starved-input",
        "The loop waits for the next batch in every step",
        "train_vision_base.py:41 in train_epoch",
        "Give the DataLoader 8 workers and pin its memory.",
        0.37,
        152 * NS_PER_MS,
        "input",
    ),
    (
        "synchronous-scalar-read",
        "`loss.item()` makes the host wait for the device in every step",
        "train_vision_base.py:58 in train_epoch",
        "Read the loss every 50 steps, or copy it without waiting.",
        0.03,
        12 * NS_PER_MS,
        "host_sync",
    ),
)

OPPORTUNITIES = (
    (
        "vision-base",
        ["starved-input"],
        "The device waits 37 % of every step for a loader without workers",
        FINDINGS[0][3],
        0.36,
        "simulated",
    ),
    (
        "vision-notebooks",
        ["device-held-idle"],
        "Devices are held and not used for 9.1 h, 91 % of the run",
        "Stop the job when nobody uses it, or start it without devices and attach one per cell.",
        0.9,
        "bound",
    ),
    (
        "speech-conformer",
        ["synchronous-checkpoint"],
        "Saving checkpoints blocks training for 20 % of the time",
        "Use torch.distributed.checkpoint.async_save instead of torch.save.",
        0.2,
        "simulated",
    ),
    (
        "demand-forecast",
        ["loop-indexing", "single-tensor-optimizer"],
        "A Python loop indexes a tensor slice by slice, and the optimizer updates tensors one at a time",
        "Replace x[:, t] in the loop by x.unbind(1); drop foreach=False.",
        0.41,
        "simulated",
    ),
    (
        "reco-ranker",
        ["synchronous-scalar-read"],
        "`loss.item()` makes the host wait for the device in every step",
        "Read the loss every 50 steps, or copy it without waiting.",
        0.22,
        "simulated",
    ),
)


def summary() -> dict[str, Any]:
    step = 410 * NS_PER_MS
    buckets = {"productive": 1500 * NS_PER_MS, "input": 900 * NS_PER_MS, "host": 60 * NS_PER_MS}
    return {
        "device": "NVIDIA H100 80GB HBM3",
        "device_kind": "gpu",
        "events": 48_211,
        "window_ns": sum(buckets.values()),
        "steps": 6,
        "step_ns": {"mean": step, "min": step - 8 * NS_PER_MS, "max": step + 11 * NS_PER_MS},
        "device_busy_ns": 1500 * NS_PER_MS,
        "buckets": buckets,
        "claims": [],
        "joint_saving_frac": 0.4,
        "warnings": [],
    }


def gap_evidence(at_ns: int, gap_ns: int, cause: str, place: str) -> list[dict[str, Any]]:
    """A gap between the kernels of two steps, with the host work and the Python frames under it."""
    start, end = at_ns, at_ns + gap_ns
    device = []
    for i in range(36):
        begin = start - (36 - i) * 2 * NS_PER_MS
        device.append({"name": f"sm90_conv_fprop_{i % 5}", "start_ns": begin, "end_ns": begin + 1_900_000, "depth": 0})
    for i in range(30):
        begin = end + i * 2 * NS_PER_MS
        device.append({"name": f"sm90_conv_fprop_{i % 5}", "start_ns": begin, "end_ns": begin + 1_800_000, "depth": 0})
    wait = "DataLoader.__next__" if cause == "input" else "aten::_local_scalar_dense"
    host = [
        {
            "name": "Optimizer.step#AdamW.step",
            "start_ns": start - 30 * NS_PER_MS,
            "end_ns": start - 4 * NS_PER_MS,
            "depth": 0,
        },
        {"name": wait, "start_ns": start - 3 * NS_PER_MS, "end_ns": end - 2 * NS_PER_MS, "depth": 0},
        {"name": "aten::to", "start_ns": end - 2 * NS_PER_MS, "end_ns": end - NS_PER_MS, "depth": 0},
        {"name": "aten::conv2d", "start_ns": end - NS_PER_MS, "end_ns": end + 40 * NS_PER_MS, "depth": 0},
    ]
    frames = [
        {"name": place, "start_ns": start - 60 * NS_PER_MS, "end_ns": end + 50 * NS_PER_MS, "depth": 0},
        {"name": f"torch: {wait}", "start_ns": start - 3 * NS_PER_MS, "end_ns": end - 2 * NS_PER_MS, "depth": 1},
        {"name": "images.py:18 in decode", "start_ns": start, "end_ns": end - 9 * NS_PER_MS, "depth": 2},
        {"name": "PIL.Image.open", "start_ns": start + NS_PER_MS, "end_ns": start + gap_ns // 2, "depth": 3},
        {
            "name": "augment.py:77 in random_crop",
            "start_ns": start + gap_ns // 2,
            "end_ns": end - 12 * NS_PER_MS,
            "depth": 3,
        },
    ]
    return [
        {
            "kind": "gap",
            "step": 1204,
            "start_ns": start,
            "end_ns": end,
            "cause": cause,
            "lanes": [
                {"lane": "device", "spans": device},
                {"lane": "host", "spans": host},
                {"lane": "frames", "spans": frames if cause == "input" else []},
            ],
        },
        {"kind": "fact", "text": "All of 6 steps have this gap", "value": 6, "unit": "steps"},
        {
            "kind": "fact",
            "text": f"The device is idle for {gap_ns // NS_PER_MS} ms per step",
            "value": gap_ns,
            "unit": "ns",
        },
        {"kind": "fact", "text": "`DataLoader` works in the training process itself", "value": 0, "unit": "processes"},
        {
            "kind": "change",
            "before": "loader = DataLoader(images, batch_size=256)",
            "after": "loader = DataLoader(\n    images,\n    batch_size=256,\n    num_workers=8,\n"
            "    pin_memory=True,\n    persistent_workers=True,\n)",
        },
    ]
