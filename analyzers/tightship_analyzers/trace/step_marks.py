"""How annotations that mark a training step begin."""

PROFILER = "ProfilerStep#"
"""Of `prof.step()`, and of programs that mark their steps themselves; the number of the step follows."""

OPTIMIZER = "Optimizer.step#"
"""Torch's own, around every call of an optimizer; the class follows."""

START = OPTIMIZER + "before the first"
"""No call of an optimizer: where a source without calls tells that its first step begins."""
