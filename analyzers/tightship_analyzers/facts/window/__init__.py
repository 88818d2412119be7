"""The part of a trace that is judged, and its steps."""
