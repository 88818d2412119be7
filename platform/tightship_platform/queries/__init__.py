"""Prepared results (records of `results`), for the API, the command line and the dashboard.

Plain functions `(session, …)`. Times are UTC nanoseconds, ratios 0..1, missing values None. Nothing here computes a
judgement: what is not in the database is None.
"""
