"""A process that behaves towards the agent as a training process does, and towards a capture as its arguments say.

Real Kineto refuses, drops and stalls only now and then; this does so on demand. It speaks the real protocol through a
real socket, and has a real control file. Arguments: run directory, and JSON with any of
  rank, flags    what the control file says
  acts           what to do with the 1st, 2nd, … config: record, refuse, drop, wrong-id, die, stall (the last repeats)
  ends_after_s   enter the exit guard then: wait until the capture is cleared, and end
  mute, busy     never poll; always poll as busy
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import time
import uuid
from pathlib import Path

from tightship_collectors.jobs import control_file as layout
from tightship_collectors.jobs.ranks import start_ticks_of

POLL_S = 0.1


def main() -> None:
    run_dir, how = Path(sys.argv[1]), json.loads(sys.argv[2])
    control = make_control_file(run_dir, how.get("rank", -1), how.get("flags", int(layout.Flag.GUARD)))
    daemon = str(run_dir / "dynolog")
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(str(run_dir / f"dynoconfigclient{uuid.uuid4()}"))
    client.settimeout(0.5)  # who asks before the agent knows it gets no answer, and asks again
    acts = how.get("acts", ["record"])
    begun, taken, busy_until, finish = time.monotonic(), 0, 0.0, None
    say("ready")
    while time.monotonic() < begun + 120:
        time.sleep(POLL_S)
        now = time.time()
        if "ends_after_s" in how and time.monotonic() > begun + how["ends_after_s"]:
            control[layout.OFF_EXITING] = layout.EXITING
            while control[layout.OFF_CAPTURE_IN_FLIGHT]:
                time.sleep(0.01)
            return
        if finish is not None and now >= busy_until:
            draft, name, content = finish
            Path(draft).write_text(content, encoding="utf-8")
            Path(draft).rename(name)
            finish = None
        if how.get("mute"):
            continue
        kinds = 1 if how.get("busy") or now < busy_until else 3
        config = ask(client, daemon, kinds)
        if not config:
            continue
        act = acts[min(taken, len(acts) - 1)]
        taken += 1
        if act == "refuse":
            continue
        asked = Path(config["ACTIVITIES_LOG_FILE"])
        name = asked.with_name(f"{asked.stem}_{os.getpid()}.json")
        draft = name.with_name(name.name + ".tmp")
        start_s = int(config.get("PROFILE_START_TIME", "0")) / 1000 or now
        time.sleep(max(0.0, start_s - 0.2 - now))
        draft.touch()
        if act == "die":
            time.sleep(0.5)
            os._exit(1)
        length_s = int(config["ACTIVITIES_DURATION_MSECS"]) / 1000
        busy_until = start_s + (1e9 if act == "stall" else 0.0 if act == "drop" else length_s)
        if act in ("record", "wrong-id"):
            trace_id = config["REQUEST_TRACE_ID"] if act == "record" else "another"
            finish = (draft, name, json.dumps({"trace_id": trace_id, "traceEvents": []}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def ask(client: socket.socket, daemon: str, kinds: int) -> dict[str, str]:
    try:
        client.sendto(struct.pack("<Q32siiqi", 20, b"req", kinds, 1, 0, os.getpid()), daemon)
        answer = client.recv(65536)[40:].decode()
    except OSError:
        return {}
    return dict(line.split("=") for line in answer.splitlines())


def make_control_file(run_dir: Path, rank: int, flags: int) -> mmap.mmap:
    pid = os.getpid()
    path = layout.rank_path(run_dir, pid)
    head = struct.pack("<8sIiQiiI", layout.MAGIC, layout.VERSION, pid, start_ticks_of(pid), rank, -1, flags)
    draft = path.with_name(f"{pid}.new")
    draft.write_bytes(head.ljust(layout.SIZE, b"\0"))
    with draft.open("r+b") as file:
        control = mmap.mmap(file.fileno(), layout.SIZE)
    draft.rename(path)
    return control


if __name__ == "__main__":
    main()
