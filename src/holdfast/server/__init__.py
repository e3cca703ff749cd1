"""The server: HTTP in, commands down to the engine, replies out. Handlers take bytes and return bytes."""
