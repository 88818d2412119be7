"""Rank comparison: who arrives when at each collective, and who keeps the others waiting.

    arrivals = {rank: collective_arrivals(trace) for rank, trace in traces.items()}
    found = arrival_skew(arrivals)                           # or NotApplicable
    for row in found.ranks:                                  # the worst first
        row.rank, row.kept_waiting_ns, row.late_exposed_ns
    found.collectives                                        # first and last arrival of each collective

`arrivals` takes what is needed out of one trace, small enough to hand from process to process; `clocks` brings the
ranks to one clock and says which collectives belong together; `skew` measures.
"""
