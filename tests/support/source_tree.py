"""The repository and its packages, for tests that read the source."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "tightship_platform": ROOT / "platform",
    "tightship_collectors": ROOT / "collectors",
    "tightship_analyzers": ROOT / "analyzers",
    "tightship_dashboard": ROOT / "dashboard",
    "tightship_offload": ROOT / "offload",
}
"""Package → the folder that holds it."""


def source_files() -> dict[str, Path]:
    """Module → its file, of all packages."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (folder / package).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
