"""The guard: what an agent is about to touch, the job that it belongs to, and whether this agent has it.

A hook of the agent's host, or of git, starts a process here before something happens. In one picture:

```text
 hook's input ──► hosts ──► touches ──► rules ──► jobs ──► claims ──► verdict ──► the host's way to say it
                            (paths, commands, tools)        │
                                                            └──► a session, and a keeper that renews it
```

What no rule names passes without a question to anybody. What a rule names passes only when the server said that the job
is this agent's. The standard library and our light leaves, nothing else: it runs before every call of a tool.
"""
