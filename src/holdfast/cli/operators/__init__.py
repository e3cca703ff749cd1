"""Commands for whoever runs the server: start it, check it, follow what happens, and step in."""
