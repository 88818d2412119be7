"""The same figures as `tutorial_0_workers.py`, of the job with four workers: `python tutorial_4_workers.py TRACE`."""

from __future__ import annotations

import sys

from tutorial_0_workers import main

if __name__ == "__main__":
    main(sys.argv[1])
