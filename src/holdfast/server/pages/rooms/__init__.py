"""The rooms of the operators' page behind the list: one job, sessions, who waits for whom, access tokens, nodes."""
