"""Writes docs/reports/: what `tightship analyze` prints for real recordings, and the lines that answer what a GPU
engineer asks, beside what was read in the recordings by hand. TIGHTSHIP_REFERENCE names the folder of the recordings.

    python tools/reports.py
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tightship_analyzers.commands.analyze import analyze

ROOT = Path(__file__).resolve().parents[1]
DOCS, READINGS = ROOT / "docs" / "reports", ROOT / "tests" / "readings"
WIDTH, UNWRAPPED = "120", "2000"


@dataclass(frozen=True, kw_only=True)
class Page:
    """One recording, and where its report answers."""

    title: str
    reading: str
    bound: tuple[str, ...]
    """Texts that stand in the lines that answer; so in the other fields."""
    first: tuple[str, ...]
    brings: tuple[str, ...]
    sure: tuple[str, ...]
    next: tuple[str, ...]


QUESTIONS = {
    "bound": "What bounds it?",
    "first": "What to do first?",
    "brings": "What will it bring?",
    "sure": "How sure is that?",
    "next": "What next?",
}
PAGES = {
    "training": Page(
        title="Training: ResNet-18 on MI300X, one rank of eight",
        reading="mi300_resnet",
        bound=("GPU busy", "The best call reaches"),
        first=("Collectives (allreduce) far below", "See with NCCL_DEBUG"),
        brings=("saves  estimate 11",),
        sure=("right in 1 of 1 real case", "more comes back only once it launches faster"),
        next=("gradient_as_bucket_view=True", "broadcast_buffers=False", "channels_last"),
    ),
    "serving": Page(
        title="Serving: one decode step of vLLM on MI300X",
        reading="vllm_decode_replay",
        bound=("GPU busy", "_bf16xbf16xmxfp4_16x128x256x1: 24 kernels", "_16x128x256x1_swiglu: 24 kernels"),
        first=("Slow grouped products", "Try another kernel or tiles"),
        brings=("4.18 ms",),
        sure=("if all experts are read", "replayed kernels are those of"),
        next=("Unfused short kernels", "engine's fused operators", "more requests run at once"),
    ),
    "diffusion": Page(
        title="Diffusion: one image of Stable Diffusion 3.5 on MI300X, recorded with Python stacks",
        reading="xdit_sd35",
        bound=("GPU busy", "no saving counts it, and without it a step would take"),
        first=("record again without stacks", "attention bf16"),
        brings=("without it a step would take", "saves  "),
        sure=("simulated)", "not covered by any finding"),
        next=("for the host to launch kernels", "Launch less often", "Most of it is in transformers"),
    ),
}


def main() -> int:
    """Write all pages; 2 where the recordings are not there."""
    folder = Path(os.environ.get("TIGHTSHIP_REFERENCE", "")) / "traces"
    if not os.environ.get("TIGHTSHIP_REFERENCE") or not folder.is_dir():
        sys.stderr.write("TIGHTSHIP_REFERENCE does not name the folder of the recordings\n")
        return 2
    for name in PAGES:
        (DOCS / f"{name}.md").write_text(page(name, folder), encoding="utf-8")
    return 0


def page(name: str, folder: Path) -> str:
    """One page.

    :param folder: of the recordings.
    """
    made = PAGES[name]
    reading = json.loads((READINGS / f"{made.reading}.json").read_text(encoding="utf-8"))
    here = Path.cwd()
    os.chdir(folder)  # the report names its files as they were given
    try:
        wide, printed = (_report(reading["traces"], width) for width in (UNWRAPPED, WIDTH))
    finally:
        os.chdir(here)
    parts = [
        "<!-- Written by `python tools/reports.py`. -->\n",
        f"# {made.title}\n",
        f"{reading['what']}\n",
        "Each answer quotes the lines of the report below that give it; under it stands what was read in the recording "
        f"by hand, before any rule was tuned ([{made.reading}.json](../../tests/readings/{made.reading}.json)).\n",
    ]
    for key, question in QUESTIONS.items():
        parts.append(f"## {question}\n")
        parts += [f"> {line}\n>" for line in _quoted(wide, getattr(made, key))]
        parts[-1] = parts[-1].removesuffix("\n>") + "\n"
        parts.append(f"By hand: {reading['answers'][key]}\n")
    parts += ["## The report\n", f"```\n{printed.strip()}\n```\n"]
    return "\n".join(parts)


def _report(traces: list[str], width: str) -> str:
    done = CliRunner().invoke(analyze, traces, env={"COLUMNS": width})
    if done.exit_code:
        raise SystemExit(done.output)
    return "\n".join(line.rstrip() for line in done.output.splitlines())


def _quoted(report: str, texts: tuple[str, ...]) -> Iterator[str]:
    """The lines in which the texts stand, without the name of the file.

    :raises SystemExit: one stands nowhere.
    """
    lines = report.splitlines()
    for text in texts:
        found = next((line for line in lines if text in line), None)
        if found is None:
            raise SystemExit(f"The report does not say {text!r} any more")
        head, _, rest = found.partition(".json.gz: ")
        yield " ".join((rest or head).split())


if __name__ == "__main__":
    raise SystemExit(main())
