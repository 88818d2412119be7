"""Activity of host and device over time."""
