"""Samples over time: means per minute and hour, and how long they are kept."""
