"""The runtime that trains a model by a plan."""
