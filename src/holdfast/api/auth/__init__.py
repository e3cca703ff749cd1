"""Who asks: bearer tokens, the secrets of sessions, and what is kept of them."""
