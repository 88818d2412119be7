"""The dependency graph of a trace: what had to wait for what, run again without a defect."""

from tightship_analyzers.graph.edits import Edits

__all__ = ["Edits"]
