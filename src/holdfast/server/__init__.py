"""The server: HTTP in, commands down to the engine, replies out. Handlers take bytes and give bytes, by two doors."""
