"""Where the time of one trace went: the figures of the field's known analysers, exact to the nanosecond.

Each module holds one analysis: a pure function from a `Trace` to a frozen record, or `NotApplicable` where the trace
lacks an input. All look at what the trace holds; `step_filter.without_last_step` gives the trace to hand them where
the last, usually unfinished, step is not to count:

    kept = without_last_step(trace.open(path))
    print(temporal_breakdown(kept), idle_by_stream(kept))

[Note: two classifications] What is communication decides several figures. `kernel_classes` gives the answer twice: by
our own recognition (arguments, links, names) and by the name patterns of HolisticTraceAnalysis, to compare with it.
Figures that depend on it take the `Scheme`.
"""
