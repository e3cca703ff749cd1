"""What agents use: the tools over MCP, the guard, the skill, and the commands for runs."""
