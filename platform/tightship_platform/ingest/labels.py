"""Labels and names of runs, as launched and as people edit them.

[Note: edited labels] A launcher reports its labels at the start, at the end, and whenever its agent repeats that. What
a person edits is kept beside them and put on top each time, so that no report undoes it, and what a launcher adds still
comes through.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.ids import RUN
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Run
from tightship_platform.errors import Invalid
from tightship_platform.redaction import hide_in_values, hide_secrets
from tightship_platform.wire import RunEdit

MAX_LABELS = 64


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Whether a run can have these.

    :raises Invalid: too many, or a label or its value is no name.
    """
    if len(labels) > MAX_LABELS:
        raise Invalid("Number of labels", len(labels), f"at most {MAX_LABELS}")
    for label, value in labels.items():
        validation.name("Label", label)
        if value is not None:
            validation.name(f"Label {label}", value, empty=True)


def with_edits(labels: Mapping[str, str], edits: Mapping[str, str | None]) -> dict[str, str]:
    """The labels with what was edited on top; see [Note: edited labels]."""
    return {label: value for label, value in {**labels, **edits}.items() if value is not None}


def edit_run(session: Session, key: str, edit: RunEdit) -> Run:
    """Change the name or labels of a run.

    :raises NotFound: there is none with this id.
    :raises Invalid: nothing is changed, a name or label cannot be, one to be taken away is not there, or there would be
        too many.
    """
    if edit.name is None and not edit.labels:
        raise Invalid("Edit of a run", "nothing", "a name, labels, or both")
    name = validation.optional_name("Name", edit.name)
    check_labels(edit.labels)
    run = next(iter(locked(session, select(Run).where(Run.key == key))), None)
    if run is None:
        raise RUN.not_found(key)
    for label, value in edit.labels.items():
        if value is None and label not in run.labels:
            there = ", ".join(sorted(run.labels)) or "no label"
            raise Invalid("Label to remove", label, f"one that run {run.key} has: {there}")
    given = {label: value for label, value in edit.labels.items() if value is not None}
    edits: dict[str, str | None] = {**run.label_edits, **edit.labels, **hide_in_values(given)}
    labels = with_edits(run.labels, edits)
    for counted, what in ((labels, "labels of the run"), (edits, "edited labels of the run")):
        if len(counted) > MAX_LABELS:
            raise Invalid(f"Number of {what}", len(counted), f"at most {MAX_LABELS}")
    run.label_edits, run.labels = edits, labels
    if edit.name is not None:
        run.name = None if name is None else hide_secrets(name)
    session.flush()
    return run
