"""From trace files to a verdict."""
