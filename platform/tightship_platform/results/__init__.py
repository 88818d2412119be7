"""Public records: what queries return, the API serves, `--json` prints and pages draw.

Frozen dataclasses of the standard library; their field names are the keys of the JSON that the API and the command line
give, which programs rely on. Times are UTC nanoseconds, sizes bytes, ratios 0..1; missing is null, never zero.
"""
