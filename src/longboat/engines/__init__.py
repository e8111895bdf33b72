"""Places that run a Plan. Only these packages start processes or talk to a cluster."""
