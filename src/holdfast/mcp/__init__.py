"""The tools for agents, over the Model Context Protocol: `holdfast mcp` over stdio, and the server's `/mcp` over HTTP.

    tools     what the tools are called, take, answer and say: written once
    results   what the client tells, in the words of the tools
    serving   the tools as a server of the SDK, over whichever desk does the work
       ├── keeping    the desk behind stdio: a process that holds a session and renews what was claimed
       └── asking     the desk behind /mcp: keeps nothing, and finds all it needs at the server with each call

`agent` is our own client with the few operations that only these desks need. `beside` is what goes on when a call is
over. `hostlink` is where a process meets the guard's hooks of its
agent. `memory` is what a process leaves for the next one of its owner, `stdio` its life, `mounted` and `http` the
application that stands beside the server's routes, `entrance` who may ask it.
"""
