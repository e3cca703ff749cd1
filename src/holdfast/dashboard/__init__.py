"""The operators' page: one module for each view, templates, and static scripts."""
