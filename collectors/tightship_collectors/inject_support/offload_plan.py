"""Applies an offload plan in a process of the job, once torch is imported. Loaded by inject/sitecustomize.py.

[Note: a plan that was asked for]
A job that runs without its offload plan dies of memory much later, or trains at a cost that nobody asked for. So this
is the one thing that may end a job: it was asked for on the command line, and ends it before it has begun.
"""

import os
import sys
from typing import Callable  # noqa: UP035 (it has to parse on Python 3.6)


def arm(report: Callable[[], None]) -> None:
    """See [Note: a plan that was asked for]. `report` shows the exception at hand to who debugs us."""
    try:
        from tightship_offload.job.bootstrap import arm

        arm()
    except Exception as error:
        report()
        why = type(error).__name__ + ": " + " ".join(str(error).split())
        sys.stderr.write("tightship: the offload plan cannot be applied here (" + why + "); ")
        if os.environ.get("TIGHTSHIP_OFFLOAD_OPTIONAL") == "1":
            sys.stderr.write("the job runs without it\n")
            return
        sys.stderr.write("install tightship[offload] for this Python, or use --offload-optional\n")
        sys.stderr.flush()
        os._exit(2)
