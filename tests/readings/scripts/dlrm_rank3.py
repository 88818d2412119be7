"""The same figures as `dlrm_rank0.py`, for rank 3: `python dlrm_rank3.py TRACE [OTHER_RANK...]`."""

from __future__ import annotations

import sys

from dlrm_rank0 import main

if __name__ == "__main__":
    main(sys.argv[1:])
