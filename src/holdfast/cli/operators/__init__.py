"""Commands that whoever runs the server types: start it, look at it, look into it, and step in."""
