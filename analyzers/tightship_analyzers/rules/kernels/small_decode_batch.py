"""Decode steps of few requests read all weights for a few tokens.

## What it finds
Steps of vLLM, SGLang or ATOM that only decode, keep the device busy, and compute less than half of the tokens above
which arithmetic, not the reading of weights, sets their time; together at least 5 % of the recording.

Where no such steps are marked and nothing is trained: products in 16-bit types whose recorded sizes say that weights
are most of what they read, for as few rows (a batch of one, a generating loop of one's own).

## Why it costs
A decode step reads every weight of the model once, whether for one token or for a hundred. Until a device computes as
long as it reads (about 300 tokens on an H100, 160 on an MI300X, for 16-bit weights), more tokens cost next to nothing,
except in attention, which reads the keys and values of each request.

## Example
```python
llm = LLM(model, max_num_seqs=32)
```

## Use instead
```python
llm = LLM(model, max_num_seqs=128)        # as far as memory for keys and values, and latency, allow
```
or the same load on fewer replicas.

The saving is what the same number of tokens takes less in steps of twice as many: half of all kernels but attention and
communication, which grow with the batch. A bound, whose low end is 0: whether more requests wait, and which latency is
asked for, is not in a trace. It is not simulated: the steps do not get shorter, they do more.

Where the sizes of most products are known (of what a graph replays, by its capture), the finding has the memory bound,
too: the bytes of these products, and the tokens per second at which the memory delivers them.

## Known misses
Without marks what has no recorded shapes, and convolutions, whose weights are small. Weights of 8 or 4 bits are read
faster: there arithmetic sets the pace from a half or a quarter of these tokens on, with experts from more of them.
Steps with prompts in them. Steps that wait for the host: `launch-bound` comes first.

## Source
Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009; rates: hardware.toml. Names of the marks: vLLM,
https://github.com/vllm-project/vllm; SGLang,
https://github.com/sgl-project/sglang; ATOM, https://github.com/ROCm/ATOM. 5 % of the recording.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.kernels.device_work import DeviceWork
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.matrix_products import MatrixProducts, Product
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.decode_steps import ATOM, SGLANG, VLLM, DecodeSteps
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.roofline.known_reads import known_reads
from tightship_analyzers.facts.roofline.slow_kernels import REACHED_MEMORY_FRAC
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    Where,
    claim,
    costliest,
    gone,
    in_window,
    is_worth,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, NotApplicable, TraceRule
from tightship_analyzers.graph.threads import backward_nodes
from tightship_analyzers.hardware import Device
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import DeviceEvents
from tightship_platform.results.evidence import Fact
from tightship_platform.units import format_ns, plural

MIN_STEP_FRAC = 0.05
"""Share of the recording below which it is no finding."""
BUSY_FRAC = 0.9
"""Of a step, from its first to its last work, the device is busy for at least as long; else the host sets the pace."""
LEFT_FRAC = 0.5
"""Of a kernel's time in steps of twice as many tokens, for each token."""
KNOWN_FRAC = 0.5
"""Of the device's time, kernels of known work: with less the memory bound says little."""
GROWS = re.compile(r"att(entio)?n|fmha|flash|paged|(?<![a-z])mla|reduce_segments", re.IGNORECASE)
"""Kernels of attention, whose work grows with the requests; the last one joins the parts of vLLM's own."""


HALVES = ("c10::bfloat16", "c10::half")


def judge(facts: Facts) -> Judgement:
    """All such steps together; without marks all such products."""
    device = facts[DeviceModel].device
    most = worth_tokens(device)
    if most is None:
        return NotApplicable(f"needs the rate of 16-bit products; {device.id} lists none")
    decode = facts.find(DecodeSteps)
    return _products(facts, most) if decode is None else _steps(facts, decode, device, most)


def _steps(facts: Facts, decode: DecodeSteps, device: Device, most: float) -> Judgement:
    work, steps = facts[DeviceWork], []
    for at in np.flatnonzero(2 * decode.tokens <= most).tolist():
        span = int(decode.marks.tid[at]), int(decode.marks.start_ns[at]), int(decode.marks.end_ns[at])
        launched = work.numbers_in(*span)
        if len(launched) and _busy_frac(work.events.take(launched)) >= BUSY_FRAC:
            steps.append((span, int(decode.tokens[at]), launched))
    numbers = np.unique(np.concatenate([launched for _, _, launched in steps])) if steps else np.array([], np.int64)
    events = work.events.take(numbers)
    grows = facts.trace.names.mask(events.name, lambda name: GROWS.search(name) is not None)
    shared = np.flatnonzero((events.kind == EventKind.KERNEL) & ~grows)
    claims = within_window(facts, gone(events.take(shared), np.full(len(shared), 1 - LEFT_FRAC)))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    tokens = sum(count for _, count, _ in steps)
    each = round(tokens / len(steps))
    busy_ns = Intervals.of_table(events).measure_ns
    took = fact(
        f"{plural(len(steps), 'batch', 'batches')}, {format_ns(busy_ns // len(steps))} each on the device"
        + (f": {tokens / busy_ns * 1e9:,.0f} tokens/s" if decode.whole else ""),
        busy_ns / len(steps),
        "ns a batch",
    )
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Decoding reads all weights for {plural(each, 'token')} at a time: "
            f"{share_of(facts, claims)} at most to gain in batches of twice as many",
            where=Where(facts[Places].of_span(*steps[0][0]) or "decoding"),
            fix="Let more requests run at once where more of them wait: a larger max_num_seqs, or fewer replicas",
            low_ns=0,
            evidence=[
                took,
                _memory_bound(facts, [span for span, _, _ in steps], busy_ns, tokens, device) if decode.whole else None,
                _worth(most),
                change(
                    "LLM(model, max_num_seqs=n)", "LLM(model, max_num_seqs=2 * n)  # as far as memory and latency allow"
                ),
            ],
        )
    ]


def _products(facts: Facts, most: float) -> Judgement:
    products = facts.get(MatrixProducts)
    if facts.find(OptimizerSteps) is not None or backward_nodes(facts.trace).any():
        return []
    if isinstance(products, NotApplicable):
        return products
    kernels = facts[KernelOps]
    found = [one for one in products.products if _reads_weights(one) and 2 * one.m <= most]
    if not found or _busy_frac(kernels.events) < BUSY_FRAC:
        return []
    at = np.array([one.at for one in found], dtype=np.int64)
    events = kernels.events.take(at)
    claims = within_window(facts, gone(events, np.full(len(at), 1 - LEFT_FRAC)))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    rows = round(float(np.average([one.m for one in found], weights=events.dur_ns)))
    moved = sum(2 * one.k * one.n for one in found)
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Products read all weights for {plural(rows, 'row')} at a time: "
            f"{share_of(facts, claims)} at most to gain in batches of twice as many",
            where=costliest(facts, kernels.op[at], events.dur_ns, "products"),
            fix="Compute more samples or requests in one batch where more of them wait",
            low_ns=0,
            evidence=[
                fact(
                    f"{plural(len(found), 'product')} {in_window(facts)}, {time_of(facts, int(events.dur_ns.sum()))}, "
                    f"read {moved / 1e9:,.2f} GB of weights",
                    len(found),
                    "products",
                ),
                _worth(most),
                change("model(sample)", "model(torch.stack(samples))  # as far as memory and latency allow"),
            ],
        )
    ]


def _reads_weights(product: Product) -> bool:
    """Is the second factor most of what it moves, in 16 bits?"""
    m, k, n = product.m, product.k, product.n
    return product.batch == 1 and k * n > m * (k + n) and product.dtype.lower() in HALVES


def _worth(most: float) -> Fact:
    return fact(
        f"With 16-bit weights this device computes as long as it reads from {most:.0f} tokens a batch on",
        most,
        "tokens a batch",
    )


def _memory_bound(
    facts: Facts, spans: list[tuple[int, int, int]], busy_ns: int, tokens: int, device: Device
) -> Fact | None:
    """What the known products read, and the time that it takes the memory; None where they are the lesser part."""
    known = known_reads(facts, spans)
    if known.device_ns < KNOWN_FRAC * busy_ns:
        return None
    least_ns = known.bytes / device.memory_bytes_per_s * 1e9
    rate = f"{tokens / least_ns * 1e9:,.0f} tokens/s"
    return fact(
        f"Known products move {known.bytes / len(spans) / 1e9:,.2f} GB a batch, if all experts are read: "
        f"{format_ns(round(least_ns / len(spans)))} at the memory's rate, or {rate} at most",
        least_ns / len(spans),
        "ns a batch",
    )


def worth_tokens(device: Device) -> float | None:
    """Tokens above which a product of 16-bit weights computes as long as it reads them: each weight is two bytes, and
    two operations for a token."""
    rate = device.reached_flops("bf16") or device.reached_flops("fp16")
    return None if rate is None else rate / (REACHED_MEMORY_FRAC * device.memory_bytes_per_s)


def _busy_frac(events: DeviceEvents) -> float:
    """From the first to the last of them."""
    return Intervals.of_table(events).measure_ns / max(1, int(events.end_ns.max() - events.start_ns.min()))


RULE = TraceRule(
    id="small-decode-batch",
    needs=(Window, DeviceModel, DeviceWork),
    title="Decode steps of few requests",
    fix="Let more requests run at once",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(f"{VLLM.pattern}|{SGLANG.pattern}|{ATOM.pattern}|aten::(add)?mm$"),
)
