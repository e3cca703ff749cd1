"""The skill for agents, and putting it in place: which host keeps what where, and edits that can be taken back.

Standard library alone. `hosts` is the table of hosts. `jsonedit` and `tomledit` add and remove one entry of JSON with
comments, or of TOML, without touching any other byte, `files` reads and replaces whole
files, `placing` puts these together. `approval` tells whether a host runs the hooks. `holdfast/SKILL.md` is the skill;
it lives in the folder `skills` of the repository, and here is a link to it, so that the package has it.
"""
