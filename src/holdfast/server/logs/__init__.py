"""Logs and traces: how lines are written, who writes them, and the lines and spans of requests and of events.

A line: `log.warning(…)` ──► `lines` make text of it ──► `writer` has a bounded queue ──► a thread ──► standard error.
"""
