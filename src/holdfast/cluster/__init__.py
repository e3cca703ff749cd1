"""Several nodes, one authority: who leads, who follows, and how a follower passes requests on."""
