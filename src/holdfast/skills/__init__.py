"""The skill for agents, and installing it for each host with edits that can be undone; standard library alone.

`holdfast/SKILL.md` is the skill; it lives in the folder `skills` of the repository, and here is a link to it, so that
the package has it.
"""
