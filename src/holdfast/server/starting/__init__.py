"""How a server starts: what it is made of, its first token, its socket, and why it cannot."""
