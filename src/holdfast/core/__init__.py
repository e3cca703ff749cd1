"""The pure core: it decides who owns what. No clock, no chance, no I/O; the standard library and msgspec only."""
