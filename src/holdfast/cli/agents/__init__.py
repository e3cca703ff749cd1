"""Commands for agents and their runs: `rlock` and its variants, sessions, guard, skill and MCP."""
