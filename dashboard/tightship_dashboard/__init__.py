"""Draws prepared results; computes none."""
