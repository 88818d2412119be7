"""The demo's advice, applied to its scripts: what the opportunities of three jobs ask for, and one change that does not
help. Each is a piece of the script and what takes its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tightship_platform.errors import TightshipError


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A change of one example."""

    workflow: str
    script: str
    team: str
    rule: str
    """Whose opportunity it acts on."""
    what: str
    """The change in a few words; it is kept with the action."""
    before: str
    after: str
    is_reverted: bool = False
    """Another change of the same opportunity follows, of the script as it was."""


_SAVED = '{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}'
_SAVES_A_COPY = Fix(
    workflow="frequent-checkpoints",
    script="frequent_checkpoints.py",
    team="science",
    rule="synchronous-checkpoint",
    what="saves a deep copy, as often as before",
    before=f"    torch.save({_SAVED}, path)",
    after=f"    import copy\n\n    torch.save(copy.deepcopy({_SAVED}), path)",
    is_reverted=True,
)

FIXES = (
    _SAVES_A_COPY,
    Fix(
        workflow="digits-classifier",
        script="digits_classifier.py",
        team="vision",
        rule="starved-input",
        what="two workers load the images",
        before="shuffle=True, drop_last=True)",
        after="shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)",
    ),
    Fix(
        workflow="recurrent-loop",
        script="recurrent_loop.py",
        team="language",
        rule="loop-indexing",
        what="unbind once, in place of an index per time step",
        before="        for t in range(x.shape[1]):\n            state = self.cell(x[:, t], state)\n",
        after="        for x_t in x.unbind(1):\n            state = self.cell(x_t, state)\n",
    ),
    replace(
        _SAVES_A_COPY,
        what="saves every 400 steps, not every 4",
        before='"--save-every", type=int, default=4)',
        after='"--save-every", type=int, default=400)',
        is_reverted=False,
    ),
)


def fixed(script: str, fix: Fix) -> str:
    """The script with the change.

    :raises TightshipError: the script has been changed, and the piece is not there once.
    """
    if script.count(fix.before) != 1:
        raise TightshipError(f"{fix.script} is not the example as it was released; reinstall tightship")
    return script.replace(fix.before, fix.after)


def write_fixed(examples: Path, folder: Path, fix: Fix) -> Path:
    """Write the changed script into a folder; its path.

    :raises TightshipError: see `fixed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / fix.script
    path.write_text(fixed((examples / fix.script).read_text(encoding="utf-8"), fix), encoding="utf-8")
    return path
