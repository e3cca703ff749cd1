"""Our server and its peers, measured in one run on one machine. Start it with `python -m benchmarks`."""
