"""The guard: maps a tool call to the jobs it needs, and refuses it unless the agent holds them.

```text
 hook's input ──► hosts ──► targets ──► rules ──► requirements ──► claims ──► verdict ──► the host's answer format
                            (paths, commands, tools)                 │
                                                                     └──► a session, and a daemon that renews it
```

It runs before every tool call, so it imports only light parts of the standard library and our light leaves. Calls that
no rule matches pass without asking the server.
"""
