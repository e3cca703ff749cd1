"""Streams: answers without an end."""
