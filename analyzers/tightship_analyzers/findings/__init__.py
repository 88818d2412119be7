"""Findings: their form, evidence, attributed time and savings."""
