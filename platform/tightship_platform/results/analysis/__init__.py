"""The analysis of a run's traces: figures of each rank, findings, and the ranks compared. Field names are the keys of
`tightship analyze --json`; times are integer ns, ratios 0..1, missing is null."""
