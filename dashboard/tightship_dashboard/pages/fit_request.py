"""The form of *Will it fit, and how fast?* as its address fills it, and the planning request that it makes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tightship_analyzers.offload_planner.request import CPU, Request
from tightship_analyzers.offload_planner.sources import LOOKED_AT, lacking, sources
from tightship_dashboard.pages.view import View
from tightship_dashboard.sentences import fit_answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, fit_href
from tightship_platform.errors import Invalid
from tightship_platform.queries.captures import list_captures, newest_captures
from tightship_platform.queries.hosts import machine_of
from tightship_platform.results.filters import Filters
from tightship_platform.results.plan_answer import PlanSource
from tightship_platform.units import parse_bytes, plural
from tightship_platform.vocabulary import DeviceKind

FIELDS = ("workflow", "gpu", "memory", "host", "cores")
_EACH = 5
"""Newest captures of every workflow that say whether it can be planned."""
_CORES = re.compile(r"[1-9][0-9]{0,4}")


class FormState:
    """The fields of the form, and which workflows can be planned."""

    def __init__(self, view: View) -> None:
        self.given = {name: view.query.get(name, "").strip()[:200] for name in FIELDS}
        self.workflow = self.given["workflow"]
        with view.database.session() as session:
            self.lacking = {name: lacking(listed) for name, listed in newest_captures(session, each=_EACH).items()}
            self.sources: list[PlanSource] = []
            self.machine = None
            if self.workflow in self.lacking:
                listed = list_captures(session, Filters(workflow=self.workflow), limit=LOOKED_AT)
                self.lacking[self.workflow] = lacking(listed)
                self.sources = sources(listed)
            if self.sources:
                self.machine = machine_of(session, self.sources[0].run)

    @property
    def address(self) -> str:
        """The page with this form."""
        return fit_href(**self.given)

    @property
    def ready_first(self) -> list[str]:
        """Workflows that can be planned, then the others."""
        return sorted(self.lacking, key=lambda name: (bool(self.lacking[name]), name))

    @property
    def answer(self) -> Answer:
        """The first line as long as nothing is planned."""
        name = fmt.name(self.workflow, limit=60)
        if not self.workflow:
            ready = sum(not why for why in self.lacking.values())
            return fit_answers.plannable(len(self.lacking), ready)
        if self.workflow not in self.lacking:
            return [f"No workflow is named {name}; pick one of the {len(self.lacking)} below, or paste a profile."]
        why = self.lacking[self.workflow]
        if why:
            return [f"{name} cannot be planned: {fmt.name(why, limit=300).rstrip('. ')}."]
        return [f"{name} is being planned from the newest of {plural(len(self.sources), 'trace')}."]

    @property
    def device(self) -> str | None:
        """What the traces were recorded on, as plans name it."""
        if self.machine is None:
            return None
        return CPU if self.machine.kind == DeviceKind.CPU else self.machine.device

    def of_host(self, what: str) -> int | None:
        """What of the host's memory or cores is one device's part."""
        whole: int | None = getattr(self.machine, what, None)
        return None if self.machine is None or whole is None else max(1, whole // self.machine.devices)

    def request(self) -> Request:
        """A plan from the workflow's traces.

        :raises Invalid: a field of the form is not acceptable.
        """
        wanted = checked(self.given)
        return Request(
            workflow=self.workflow,
            sources=tuple(self.sources),
            recorded_on=self.device,
            recorded_bytes=None if self.machine is None else self.machine.device_bytes,
            device=wanted.device,
            host_bytes=wanted.host_bytes or self.of_host("host_bytes"),
            cores=wanted.cores or self.of_host("cores"),
            budget_bytes=wanted.budget_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The machine that the form describes; null what is left empty."""

    device: str | None
    budget_bytes: int | None
    host_bytes: int | None
    cores: int | None


def checked(given: dict[str, str]) -> Wanted:
    """The fields of the form, checked.

    :raises Invalid: one is not acceptable.
    """
    if given["cores"] and not _CORES.fullmatch(given["cores"]):
        raise Invalid("Cores of the host", given["cores"], "a whole number from 1 to 99999")
    return Wanted(
        device=given["gpu"] or None,
        budget_bytes=parse_bytes(given["memory"]) if given["memory"] else None,
        host_bytes=parse_bytes(given["host"]) if given["host"] else None,
        cores=int(given["cores"]) if given["cores"] else None,
    )
