"""The side that asks. Knows the wire and nothing of what is behind it.

What users import is offered by `holdfast` itself; all that is in here may move. The rooms are in ARCHITECTURE.md.
"""
