"""The table of operations, and what is done alike for each: finding it, reading the request, letting the caller in."""
