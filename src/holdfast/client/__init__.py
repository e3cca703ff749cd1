"""The side that asks. Knows the wire and nothing of what is behind it."""
