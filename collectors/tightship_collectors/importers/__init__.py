"""Histories of other fleets, read from what was recorded of them: one file per format.

An importer reads a source into a `Source`: what its figures take for granted, then runs and samples. What it cannot
take is counted and listed with its line (`Refused`), and never repaired.
"""
