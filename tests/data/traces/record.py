"""Records the traces beside this file anew: `python tests/data/traces/record.py [NAME…]`.

Each job of jobs.py runs unmodified under Kineto's on-demand protocol, as the host agent would record it, with stacks
and without input shapes. The recordings are real; only the names of the host and of the file are replaced.
"""

import gzip
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
WINDOW_MS = {
    "healthy": 120,
    "fed": 120,
    "starved": 120,
    "slow_workers": 250,
    "checkpoints": 120,
    "rare_checkpoint": 90,
    "single_tensor": 60,
    "fused": 60,
    "loop": 50,
    "unbind": 40,
    "loop_without_gradient": 30,
    "layers": 30,
}
WARM_S = 8.0
MAX_BYTES = 300_000


def record(name: str, window_ms: int) -> bytes:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(f"{folder}/dynolog")
        daemon.settimeout(0.2)
        Path(folder, "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        env = dict(
            os.environ, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=folder, KINETO_CONFIG=f"{folder}/kineto.conf"
        )
        job = subprocess.Popen([sys.executable, "jobs.py", name], env=env, cwd=HERE)
        config = (
            f"ACTIVITIES_LOG_FILE={folder}/t.json\nPROFILE_START_TIME=0\nACTIVITIES_DURATION_MSECS={window_ms}\n"
            "PROFILE_WITH_STACK=true\nPROFILE_WITH_MODULES=true\nACTIVITIES_WARMUP_PERIOD_SECS=1\n"
        )
        found = Path(folder, f"t_{job.pid}.json")
        begun, sent = time.monotonic(), False
        while not found.exists() and job.poll() is None and time.monotonic() - begun < 60:
            try:
                message, client = daemon.recvfrom(1 << 16)
            except TimeoutError:
                continue
            kind = struct.unpack_from("<Q32s", message)[1].rstrip(b"\0")
            answer = struct.pack("<i", 1) if kind == b"ctxt" else b""
            if kind == b"req" and not sent and time.monotonic() - begun > WARM_S:
                answer, sent = config.encode(), True
            daemon.sendto(struct.pack("<Q32s", len(answer), kind) + answer, client)
        job.kill()
        job.wait()
        return found.read_bytes()


def main() -> None:
    for name in sys.argv[1:] or WINDOW_MS:
        text = record(name, WINDOW_MS[name])
        text = re.sub(rb'"traceName": "[^"]*"', b'"traceName": "trace.json"', text)
        text = re.sub(rb'"host_name": "[^"]*"', b'"host_name": "host"', text)
        packed = gzip.compress(text, compresslevel=9, mtime=0)
        sys.stdout.write(f"{name}: {len(text):,} bytes, packed {len(packed):,}\n")
        if len(packed) > MAX_BYTES:
            sys.exit(f"{name} is too large for the repository; shorten its window")
        (HERE / f"{name}.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
