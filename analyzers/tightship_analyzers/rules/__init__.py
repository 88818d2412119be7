"""One file per rule: its docstring is its public page, its thresholds carry their source. See catalogue.py."""
