"""Processes of an installation: supervisor, logs, liveness, health."""
