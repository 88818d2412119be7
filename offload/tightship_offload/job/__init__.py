"""Runs inside an unmodified job: applies a plan, or measures."""
