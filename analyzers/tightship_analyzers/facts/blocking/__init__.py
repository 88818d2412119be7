"""Calls that block the host."""
