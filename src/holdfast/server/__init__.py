"""Starts and stops a server: from settings to a running process."""
