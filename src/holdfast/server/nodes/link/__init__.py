"""The link between two nodes: frames over one connection, from a follower to the leader."""
