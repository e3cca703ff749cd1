"""Every operation of the client, written once as a generator of effects. `sync` and `aio` interpret them."""
