"""Sub-commands of the analyzers. They import click and the standard library only; the rest when called."""
