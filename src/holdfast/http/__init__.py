"""HTTP/1.1 connections: parsing, queueing, time limits, TLS. Requests are answered by a `Handler`."""
