"""Plans as YAML files: read with suspicion, written with their explanation on top."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import yaml

from tightship_offload.errors import PlanError
from tightship_offload.plan.model import VERSION, Plan
from tightship_offload.plan.schema import short

MOST_BYTES = 4 * 2**20
"""A plan for 10,000 layers has less than 1 MiB."""
MOST_DEPTH = 20
_LINE = 110


class _Reader(yaml.SafeLoader):
    """Safe YAML without aliases (a few of which can stand for billions of entries) and without double keys."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise PlanError("it uses a YAML alias (*name); write the value out")
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise PlanError(f"it is nested more than {MOST_DEPTH} deep; a plan is not")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value.__hash__ is None or not isinstance(key.value, str):
                raise PlanError("it has a key that is no plain text or number")
            if key.value in seen:
                raise PlanError(f"it has the entry {short(key.value)} twice; give it once")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file.

    :raises PlanError: it cannot be read, is no YAML, or is no plan.
    """
    data = read_mapping(path, "Plan", "`tightship offload plan`", VERSION)
    try:
        return Plan.from_mapping(data, "plan")
    except PlanError as error:
        raise PlanError(f"Plan {short(os.fspath(path))}: {error}") from None


def read_mapping(path: str | os.PathLike[str], kind: str, maker: str, version: int) -> dict[Any, Any]:
    """The data of a versioned YAML file, not checked beyond that.

    :param kind: what the file is, for messages: `Plan`.
    :param maker: what writes such a file.
    :raises PlanError: it cannot be read, is no YAML, or has another version.
    """
    shown = short(os.fspath(path))
    try:
        file = Path(path)
        if not file.is_file():
            raise PlanError(f"{kind} {shown} is not there; write one with {maker}")
        if file.stat().st_size > MOST_BYTES:
            raise PlanError(f"{kind} {shown} has more than {MOST_BYTES} bytes; expected one that {maker} wrote")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlanError(f"{kind} {shown} is not UTF-8 text; write one with {maker}") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{kind} {shown} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse_mapping(text, version)
    except PlanError as error:
        raise PlanError(f"{kind} {shown}: {error}") from None


def parse_plan(text: str) -> Plan:
    """The plan that a YAML text holds.

    :raises PlanError: it is no YAML, or no plan.
    """
    return Plan.from_mapping(parse_mapping(text, VERSION), "plan")


def parse_mapping(text: str, version: int) -> dict[Any, Any]:
    """The data of a versioned YAML text, not checked beyond that.

    :raises PlanError: it is too long, no YAML, or of another version.
    """
    if len(text) > MOST_BYTES:
        raise PlanError(f"it has {len(text)} characters; expected at most {MOST_BYTES}")
    try:
        data = yaml.load(text, Loader=_Reader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise PlanError(f"it is no YAML: {_one_line(str(error))}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise PlanError(f"it has a value that YAML cannot hold: {_one_line(str(error))}") from None
    if not isinstance(data, dict):
        raise PlanError(f"it is {short(data)}; expected a mapping")
    found = data.get("version")
    if found != version or isinstance(found, bool):
        raise PlanError(f"its version is {short(found)}; this release reads version {version}: write it anew")
    return data


def plan_text(plan: Plan, comment: str = "") -> str:
    """A plan as YAML; `comment` stands above it."""
    wrapped = [part for line in comment.splitlines() for part in textwrap.wrap(line, _LINE) or [""]]
    head = "".join(f"# {line}".rstrip() + "\n" for line in wrapped)
    body = yaml.dump(plan.as_mapping(), Dumper=_Writer, sort_keys=False, width=_LINE, allow_unicode=True)
    return f"{head}\n{body}" if head else body


def write_plan(plan: Plan, path: str | os.PathLike[str], comment: str = "") -> None:
    """Write a plan; the file is whole or not there.

    :raises PlanError: it cannot be written.
    """
    write_text(Path(path), plan_text(plan, comment), "Plan")


def write_text(path: Path, text: str, kind: str) -> None:
    """Write a file that is whole or not there.

    :raises PlanError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PlanError(f"{kind} {short(str(path))} cannot be written: {error.strerror or error}") from None


class _Writer(yaml.SafeDumper):
    """Lists of numbers on one line."""


def _flow_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Writer.add_representer(list, _flow_list)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:300]).split())
