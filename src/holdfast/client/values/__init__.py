"""Values, and the rules for making them: records, answers, options, configuration, terms. Nothing here waits."""
