"""The dependency graph of a trace, run again."""
