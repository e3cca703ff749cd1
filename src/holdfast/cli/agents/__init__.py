"""Commands for agents and the runs they work in: `rlock` and its kin, and sessions."""
