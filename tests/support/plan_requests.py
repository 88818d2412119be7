"""Models to plan for, made up."""

from __future__ import annotations

import json
import random
from typing import Any

from tightship_analyzers.offload_planner.request import Request

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
COST = {"forward_ns": 2 * 10**7, "backward_ns": 4 * 10**7, "parameters": 10**8, "trainable": 10**8}
PROFILE: dict[str, Any] = {
    "version": 1,
    "model": {"name": "GPT", "layer_parameters": [10**8] * 5},
    "layers": [COST | {"activation_bytes": 2**28, "input_bytes": 2**20} for _ in range(5)],
    "origin": "measured",
}
"""Five layers of 100 M parameters."""


def request_for(**changes: Any) -> Request:
    """A request that takes a worker less than a second."""
    given = {"profile": json.dumps(PROFILE), "device": H100, "host_bytes": 64 * GIB, "cores": 8} | changes
    return Request(**given)


def slow_profile(layers: int = 100) -> str:
    """A model of so many uneven layers that its plan takes many seconds on one core of host."""
    chance = random.Random(1)
    costs = [_uneven(chance) for _ in range(layers)]
    model = {"name": "Slow", "layer_parameters": [cost["parameters"] for cost in costs]}
    return json.dumps({"version": 1, "model": model, "layers": costs, "batch": 4, "origin": "measured"})


def _uneven(chance: random.Random) -> dict[str, int]:
    parameters, forward_ns = chance.randint(5 * 10**7, 2 * 10**8), chance.randint(10**7, 4 * 10**7)
    return {
        "forward_ns": forward_ns,
        "backward_ns": 2 * forward_ns,
        "parameters": parameters,
        "trainable": parameters,
        "activation_bytes": chance.randint(2**26, 2**28),
        "input_bytes": 2**20,
    }
