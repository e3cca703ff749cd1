"""One function for each operation: it builds a command and says how its outcome is shown."""
