"""The tools for agents over the Model Context Protocol: `holdfast mcp` over stdio, and the server's `/mcp` over HTTP.

    stdio ──► sdk_server ──► kept_session     one process, one session, renewed in the background
    http ───►            ──► named_session    the session that a call names, looked up at the server

`tools` describes the tools and decodes calls, `session` carries them out, and `results` encodes what comes of them.
`memory` is what a process leaves for the next one, `hostlink` its link with the guard's hooks, and `mounted` the part
of `/mcp` that every server loads (with the types in `asgi`).
"""
