"""How requests come in and answers go out: the fast lane and the ASGI door. Both end in `operations.router`."""
