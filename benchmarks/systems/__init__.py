"""The systems under test: found, started so that every grant is durable, pressed, measured, and ended."""
