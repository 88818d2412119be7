"""Sub-commands of `tightship`: they import click and nothing heavy until they are called."""
