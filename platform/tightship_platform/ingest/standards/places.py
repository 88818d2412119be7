"""Where a series was measured: which labels name the host and the device.

dcgm-exporter: `Hostname`, `UUID`, `gpu`, `modelName`. OpenTelemetry: the attributes `host.name` and `hw.id`, with `_`
for `.` here. Where nothing better is there, the host is Prometheus's `instance` without its port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tightship_platform import validation
from tightship_platform.ingest.standards.series import Fault

_HOST = ("Hostname", "hostname", "host_name", "node", "nodename", "kubernetes_node", "k8s_node_name")
_SCRAPED = ("instance", "service_instance_id")
_UUID = ("UUID", "uuid", "gpu_uuid", "hw_id")
_INDEX = ("gpu", "gpu_id", "gpu_index")
_MODEL = ("modelName", "hw_model", "hw_name")
_SLICE = ("GPU_I_ID", "GPU_I_PROFILE")
_PORT = re.compile(r":\d{1,5}$", re.ASCII)
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device of a host, as labels name it."""

    host: str
    uuid: str | None
    """Null: only its number is known."""
    index: str
    """Its number on the host; empty: not known."""
    model: str | None


def is_slice(labels: Mapping[str, str]) -> bool:
    """Whether it is about a MIG slice: dcgm-exporter names it by the UUID of the whole device."""
    return any(labels.get(label) for label in _SLICE)


def place_of(labels: Mapping[str, str]) -> Place:
    """The place that the labels name.

    :param labels: with `_` for `.` in their names.
    :raises Fault: no host, or no device, or neither can be a name.
    :raises Invalid: likewise.
    """
    host = _first(labels, _HOST) or _PORT.sub("", _first(labels, _SCRAPED))
    if not host:
        raise Fault(f"no label names its host ({', '.join((*_HOST, *_SCRAPED))})")
    uuid, index = _first(labels, _UUID), _first(labels, _INDEX)
    if not uuid and not _NUMBER.fullmatch(index):
        raise Fault(f"no label names its device ({', '.join((*_UUID, *_INDEX))})")
    return Place(
        host=validation.name("Host", host),
        uuid=validation.name("Device uuid", uuid) if uuid else None,
        index=index if _NUMBER.fullmatch(index) else "",
        model=validation.optional_name("Device name", _first(labels, _MODEL)),
    )


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
