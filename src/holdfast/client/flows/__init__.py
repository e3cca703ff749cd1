"""Every operation of the client, written once, as a generator. Flows know neither threads nor coroutines."""
