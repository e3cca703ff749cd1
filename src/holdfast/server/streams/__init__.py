"""Answers without an end: what happens to one name, and everything that happens."""
