"""Action Llama's routes, in its own words. A run is a session, known by its secret."""
