"""The skill for agents, and its installation into hosts by reversible edits. Only the standard library is imported.

`holdfast/SKILL.md` is a link to the skill in the repository's folder `skills`, so that the package contains it.
"""
