"""The API: routes, decoding, authentication and rendering. `api/handlers` has one function for each operation."""
