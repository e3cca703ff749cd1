"""The client for threads: it waits by blocking."""
