"""The guard: what an agent is about to touch, the job that it belongs to, and whether this agent has it.

```text
 hook's input ──► hosts ──► targets ──► rules ──► jobs ──► claims ──► verdict ──► the host's way to say it
                            (paths, commands, tools)        │
                                                            └──► a session, and a keeper that renews it
```

It runs before every call of a tool, so it imports only light parts of the standard library and our light leaves. What
no rule names passes without asking the server.
"""
