"""Traces and samples become facts, facts are judged by rules, findings become ranked opportunities."""
