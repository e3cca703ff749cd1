"""What client and server agree on: messages and problems. Knows neither side."""
