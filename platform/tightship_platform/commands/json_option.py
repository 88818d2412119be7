"""`--json` of a command: its keys are the fields of the record that it prints, in help and documents alike."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

import click

from tightship_platform.results.codec import fields_of

MOST_INNER = 8
"""Keys of a record within a record that the help spells out; docs/cli.md has all."""


class JsonOption(click.Option):
    """The option, which knows the record: tools/generate_docs.py writes its fields into docs/cli.md."""

    def __init__(self, *args: Any, record: type, is_list: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record = record
        self.is_list = is_list


def json_option(record: type, text: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare `--json` (`as_json`) of a command that prints a list of such records, or one where a text is given."""
    is_list = not text
    text = text or "Print a JSON array instead of a table."
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        cls=JsonOption,
        record=record,
        is_list=is_list,
        help=f"{text} Keys: {_keys(record)}.",
    )


def print_json(value: object) -> None:
    """A record, or a list of them, on stdout."""
    click.echo(json.dumps(value, indent=2, default=fields_of))


def _keys(record: type) -> str:
    """Such as `finding, saving{value, unit}, ranks[{rank, pid}]`."""
    hints = get_type_hints(record)
    return ", ".join(field.name + _inner(hints[field.name]) for field in dataclasses.fields(record))


def _inner(kind: Any) -> str:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return f"{{{_keys(kind)}}}" if len(dataclasses.fields(kind)) <= MOST_INNER else ""
    if get_origin(kind) is list:
        return f"[{_inner(get_args(kind)[0])}]"
    return ""
