"""The client, which depends on the wire format only. Users import its public names from `holdfast`."""
