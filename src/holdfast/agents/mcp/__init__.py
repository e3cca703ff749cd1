"""The tools for agents over the Model Context Protocol: `holdfast mcp` over stdio, and the server's `/mcp` over HTTP.

    stdio ──► sdk_server ──► stdio_backend    one process, one session, renewed in the background
    http ───►            ──► http_backend     the session that a call names, looked up at the server

`tools` describes the tools and decodes calls, `backend` carries them out, and `results` encodes what comes of them.
`saved_state` is what a process leaves for the next one, `guard_link` its link with the guard's hooks,
and `endpoint` the part of `/mcp` that every server loads (with the types in `asgi`).
"""
