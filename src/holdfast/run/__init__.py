"""Runs a command for as long as something is held, and stops it before that can be lost. Begin at `supervisor.py`."""
