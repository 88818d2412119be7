"""NVML that answers from a file under tests/data/nvml, for hosts without a GPU.

The files are written by hand after NVML's documentation, not recorded from hardware: they pin how answers are read, not
what a given driver answers. Constants, structures and exceptions are those of the real `pynvml`.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

FOLDER = Path(__file__).parents[1] / "data" / "nvml"


class RecordedNvml:
    """Stands in for the module `pynvml`; each call is counted in `calls`."""

    def __init__(self, name: str, *, init_error: str | None = None) -> None:
        self._tree = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        self.init_error = init_error
        self.calls: dict[str, int] = {}
        self.open_samples: set[int] = set()
        self._ticks: dict[tuple[int, str], int] = {}
        self._samples: dict[int, tuple[int, int]] = {}
        self._next_address = 4096

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDevice"):
            return lambda handle, *args: self._device_call(name, handle, args)
        return getattr(pynvml, name)

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The recorded tree, open to changes."""
        return list(self._tree["gpus"])

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls["nvmlInit"] = self.calls.get("nvmlInit", 0) + 1
        if self.init_error:
            raise self._error(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return str(self._tree["driver"])

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._tree["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self._tree["gpus"][index]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return len(handle["slices"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:  # noqa: N802
        if handle["slices"][index] is None:
            raise self._error("NVML_ERROR_NOT_FOUND")
        return handle["slices"][index]

    def nvmlDeviceGetFieldValues(self, handle: Any, wanted: Any) -> list[Any]:  # noqa: N802
        recorded = self._device_call("nvmlDeviceGetFieldValues", handle, (wanted,))
        by_id = {getattr(pynvml, name): value for name, value in vars(recorded).items()}
        found = []
        for field_id, _scope in wanted:
            value = pynvml.c_nvmlFieldValue_t()
            value.fieldId = field_id
            value.nvmlReturn = pynvml.NVML_SUCCESS if field_id in by_id else pynvml.NVML_ERROR_NOT_SUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = by_id.get(field_id, 0)
            found.append(value)
        return found

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:  # noqa: N802
        has_gpm = "gpm" in handle or any("gpm" in (s or {}) for s in handle.get("slices", ()))
        return SimpleNamespace(isSupportedDevice=int(has_gpm))

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self._next_address += 4096
        self.open_samples.add(self._next_address)
        return ctypes.cast(ctypes.c_void_p(self._next_address), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self.open_samples.remove(_address(sample))

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:  # noqa: N802
        tick = self._tick(handle, "gpm")
        self._samples[_address(sample)] = (id(handle), tick)
        return sample

    def nvmlGpmMigSampleGet(self, handle: Any, instance: int, sample: Any) -> Any:  # noqa: N802
        chosen = next(s for s in handle["slices"] if s and s["nvmlDeviceGetGpuInstanceId"] == instance)
        return self.nvmlGpmSampleGet(chosen, sample)

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        (owner, before), (same, after) = (self._samples[_address(s)] for s in (request.sample1, request.sample2))
        if owner != same or before >= after:
            raise self._error("NVML_ERROR_INVALID_ARGUMENT")
        handle = next(h for g in self.gpus for h in (g, *g.get("slices", ())) if h is not None and id(h) == owner)
        recorded = handle["gpm"][min(after, len(handle["gpm"]) - 1)]
        by_id = {getattr(pynvml, name): float(value) for name, value in recorded.items()}
        for slot in range(request.numMetrics):
            metric = request.metrics[slot]
            known = metric.metricId in by_id
            metric.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = by_id.get(metric.metricId, 0.0)
        return request

    def _tick(self, handle: Any, call: str) -> int:
        key = (id(handle), call)
        self._ticks[key] = self._ticks.get(key, -1) + 1
        return self._ticks[key]

    def _device_call(self, call: str, handle: Any, args: tuple[Any, ...]) -> Any:
        self.calls[call] = self.calls.get(call, 0) + 1
        if call not in handle:
            raise self._error("NVML_ERROR_FUNCTION_NOT_FOUND")
        answer = handle[call]
        if isinstance(answer, dict) and "ticks" in answer:
            answer = answer["ticks"][min(self._tick(handle, call), len(answer["ticks"]) - 1)]
        if isinstance(answer, dict) and "error" in answer:
            raise self._error(answer["error"])
        return _as_struct(answer)

    def _error(self, name: str) -> Any:
        return pynvml.NVMLError(getattr(pynvml, name))


def _as_struct(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SimpleNamespace(**value)
    return [_as_struct(item) for item in value] if isinstance(value, list) else value


def _address(sample: Any) -> int:
    return int(ctypes.cast(sample, ctypes.c_void_p).value or 0)
