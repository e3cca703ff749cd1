"""The engine: the one write path from a command to a durable answer. Owns the clock, the ids and the journal."""
