"""What it means to hold a claim or a session: all of it but waiting. Both twins build on it."""
