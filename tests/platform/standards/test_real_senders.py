"""A real Prometheus and OpenTelemetry's own SDK write into a server, and `tightship samples` shows it."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import Served, heartbeat, ok, run_record, serving
from click.testing import CliRunner
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from services import Unavailable, prometheus_server
from waiting import PATIENCE_S, wait_for

from tightship_platform.api.auth import create_token
from tightship_platform.client import API
from tightship_platform.commands.lists import samples
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

PAGE = Path(__file__).parents[2] / "data" / "dcgm" / "page.txt"
"""In the form of dcgm-exporter's."""
FIRST, SECOND = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "GPU-9e2c1a44-0b7d-3f55-c0aa-8d61f2f0b3e1"
HOST, RUN, OTHER = "gpu17", "a1" * 8, "b2" * 8
EXACT = {
    "clock_hz": 1_980_000_000,
    "temperature_c": 41.0,
    "power_w": 347.215,
    "util_frac": 0.41,
    "memory_used_bytes": 42_949_672_960,
    "sm_active_frac": 0.41,
    "sm_occupancy_frac": 0.217342,
    "tensor_active_frac": 0.171,
    "dram_active_frac": 0.123456,
    "pcie_tx_bytes_per_s": 51_234_567,
    "pcie_rx_bytes_per_s": 1_073_741_824,
    "nvlink_tx_bytes_per_s": 21_474_836_480,
    "nvlink_rx_bytes_per_s": 21_474_836_480,
}
"""Of the first device."""


@pytest.fixture(scope="module")
def served(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    """A server that knows a host with two devices, the first held by a run."""
    with serving(make_platform_env().settings) as made:
        since_ns = now_ns() - 60 * NS_PER_S
        devices = [{"uuid": uuid, "kind": "gpu", "name": "NVIDIA H100 80GB HBM3"} for uuid in (FIRST, SECOND)]
        ran = {"run": OTHER, "device": SECOND, "start_ns": since_ns, "end_ns": since_ns + NS_PER_S}
        held = [{"run": RUN, "device": FIRST, "start_ns": since_ns}, ran]
        with made.http() as http:
            for run in (RUN, OTHER):
                ok(http.post("/runs", json=run_record(run, host=HOST)))
            ok(http.post("/hosts/heartbeat", json=heartbeat(RUN) | {"host": HOST, "devices": devices}))
            ok(http.post("/batches", json={"host": HOST, "allocations": held}))
        yield made


def token(served: Served, name: str, scope: Scope) -> str:
    with served.database.session() as session:
        return create_token(session, name, [scope])


def listed(served: Served, *arguments: str) -> list[dict[str, Any]]:
    """What `tightship samples --json` prints."""
    environment = {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": served.local_token}
    result = CliRunner().invoke(samples, [*arguments, "--json"], env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def counted(served: Served) -> dict[str, int]:
    """What became of values of remote-write until now, at `/metrics`."""
    with served.http() as http:
        figures = http.get(f"{served.url}/metrics").text
    found = re.findall(
        r'^tightship_received_values_total{standard="remote-write",outcome="(\w+)"} (\d+)$', figures, re.M
    )
    return {outcome: int(count) for outcome, count in found}


@pytest.fixture
def page() -> Iterator[str]:
    """Address of an exporter that serves PAGE."""

    class Exporter(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(PAGE.read_bytes())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.prometheus
def test_prometheus_scrapes_us_and_writes_a_page_of_dcgm_exporter_into_us(served: Served, page: str) -> None:
    """Through no label of ours: `Hostname` names the host, `UUID` the device, and the page's units are DCGM's."""
    own, before = served.url.removeprefix("http://"), counted(served)
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "dcgm", "static_configs": [{"targets": [page]}]},
            {
                "job_name": "tightship",
                "authorization": {"credentials": token(served, "scraper", Scope.READ)},
                "static_configs": [{"targets": [own]}],
                # A server that begins takes its time, and nothing here is timed.
                "scrape_interval": "10s",
                "scrape_timeout": "10s",
            },
        ],
        "remote_write": [
            {
                "url": f"{served.url}{API}/prometheus/write",
                "authorization": {"credentials": token(served, "prometheus", Scope.INGEST)},
                "queue_config": {"batch_send_deadline": "1s"},
            }
        ],
    }
    try:
        with prometheus_server(json.dumps(configuration)) as prometheus:  # JSON is YAML
            wait_for(lambda: {one["metric"] for one in listed(served, "--device", FIRST)} >= EXACT.keys())
            query = partial(httpx.get, f"{prometheus}/api/v1/query", trust_env=False, timeout=PATIENCE_S)
            asked = {"params": {"query": 'tightship_build_info{job="tightship"} * on(instance) up'}}
            wait_for(lambda: [one["value"][1] for one in query(**asked).json()["data"]["result"]] == ["1"])
            failed = query(params={"query": "prometheus_remote_storage_samples_failed_total"}).json()["data"]["result"]
            assert [one for one in failed if one["value"][1] != "0"] == []
    except Unavailable as why:
        pytest.skip(str(why))
    first = listed(served, "--device", FIRST, "--since", "10m")
    assert {(one["metric"], one["value"]) for one in first} == EXACT.items()
    assert {(one["host"], one["run"]) for one in first} == {(HOST, RUN)}
    assert all(one["time_ns"] % 1_000_000 == 0 for one in first)
    second = {one["metric"]: one["value"] for one in listed(served, "--host", HOST, "--device", SECOND)}
    assert second.keys() == EXACT.keys() - {"power_w", "sm_occupancy_frac"}
    assert second["memory_used_bytes"] == 1 << 20
    assert {one["run"] for one in listed(served, "--device", SECOND)} == {None}
    chosen = listed(served, "--run", RUN, "--metric", "sm_active_frac", "--metric", "memory_used_bytes")
    assert {(one["metric"], one["value"]) for one in chosen} == {
        ("sm_active_frac", 0.41),
        ("memory_used_bytes", 42_949_672_960),
    }
    # Of one scrape all values are of one instant, though they come in several requests.
    assert 2 in Counter(one["time_ns"] for one in chosen).values()
    after = counted(served)
    assert {outcome for outcome in after if after[outcome] > before.get(outcome, 0)} == {"stored", "missing", "unknown"}


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_the_sdk_of_opentelemetry_writes_into_us(served: Served, compression: Compression) -> None:
    exporter = OTLPMetricExporter(
        endpoint=f"{served.url}{API}/otlp/v1/metrics",
        headers={"authorization": f"Bearer {token(served, f'sdk {compression.name}', Scope.INGEST)}"},
        compression=compression,
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider(resource=Resource({"host.name": HOST}), metric_readers=[reader])
    meter = provider.get_meter("exporter")
    of_device = {"hw.id": SECOND, "hw.type": "gpu"}
    value = 0.25 if compression is Compression.Gzip else 0.75
    meter.create_gauge("hw.gpu.utilization", unit="1").set(value, of_device)
    meter.create_up_down_counter("hw.gpu.memory.usage", unit="By").add(2**36 + 1, of_device)
    meter.create_histogram("of.no.interest").record(1.0)
    before = now_ns()
    assert provider.force_flush()
    provider.shutdown()
    found = [one for one in listed(served, "--device", SECOND) if one["time_ns"] > before]
    assert {("util_frac", value), ("memory_used_bytes", 2**36 + 1)} <= {(one["metric"], one["value"]) for one in found}
    assert {(one["host"], one["run"]) for one in found} == {(HOST, None)}
