"""Load: our own generator in a process of its own, and the tools of others (wrk, redis-benchmark, pgbench)."""
