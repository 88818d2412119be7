"""Metrics as fleets already send them: Prometheus remote-write and OTLP.

A body goes through `compressed`, then `remote_write` or `otlp`, which read it into `Series`; `names` says what each is
in our metrics and units, `places` where it was measured, and `collected` keeps what can be stored and counts the rest.
Nothing of a body is believed: all reading is bounded, and what is wrong with one series leaves the others be.
"""
