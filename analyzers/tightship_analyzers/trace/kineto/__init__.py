"""Kineto's JSON, read into columns."""
