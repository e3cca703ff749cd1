"""The tools for agents over the Model Context Protocol: `holdfast mcp` over stdio, and the server's `/mcp` over HTTP.

    stdio ──► sdk_server ──► backend ──► kept_session     one process, one session, renewed in the background
    http ───►            ──►         ──► named_session    the session that a call names, looked up at the server

`tools` describes the tools and decodes calls, `backend` carries them out, `results` encodes what comes of them. `agent`
is the client with the operations that only sessions need, `waits` keeps places in queues between two calls, `memory` is
what a process leaves for the next one, `hostlink` its link with the guard's hooks, and `mounted` (with the
types in `asgi`) the part of `/mcp` that every server loads.
"""
