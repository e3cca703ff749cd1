"""The `holdfast` command. What is heavy is imported by the command that needs it, when it needs it."""
