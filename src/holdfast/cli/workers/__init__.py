"""Commands for whoever does the work: claim, renew, give back, and ask who owns what."""
