"""The client for coroutines, twin of the one for threads: it waits by awaiting."""
