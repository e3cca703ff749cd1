"""Authentication: bearer tokens, secrets of sessions and claims, the sign-in cookie, and origins."""
