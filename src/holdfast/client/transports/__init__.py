"""HTTP for the client: `sync` over sockets for threads, `aio` over aiohttp for coroutines."""
