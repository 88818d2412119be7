"""Errors that a person is expected to read: one line each, with what, the value seen, and what to do."""

from __future__ import annotations


class OffloadError(Exception):
    """An expected failure of offloading, fit to be shown as it is."""

    exit_code = 2


class PlanError(OffloadError):
    """A plan is not acceptable, or not for this model or machine."""
