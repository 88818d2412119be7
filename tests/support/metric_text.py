"""Reads Prometheus' text form, strictly: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import re

_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)(\{{{_LABEL}(?:,{_LABEL})*\}})? (\S+)", re.ASCII)


def figures_of(text: str) -> dict[str, float]:
    """Name with labels → value. Each family is announced once, before its samples, and no sample comes twice."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    family, families = "", []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            families.append(family)
            continue
        if line.startswith("# TYPE "):
            assert line.split()[2] == family and line.split()[3] in ("counter", "gauge", "histogram")
            continue
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        assert re.fullmatch(rf"{family}(_bucket|_sum|_count)?", match[1]), f"{line} under {family}"
        name = match[1] + (match[2] or "")
        assert name not in found, line
        found[name] = float(match[3])
    assert len(families) == len(set(families))
    return found
