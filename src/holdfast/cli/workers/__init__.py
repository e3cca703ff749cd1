"""Commands that whoever does the work types: claim, renew, say, give back, and ask who owns what."""
