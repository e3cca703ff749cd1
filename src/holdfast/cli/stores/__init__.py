"""Commands for whoever runs a store that nodes share."""
