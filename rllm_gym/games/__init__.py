"""Games whose optimal play is known: what a policy does at every information set, and how far it is from an optimum."""
