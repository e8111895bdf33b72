"""A Plan as Kubernetes objects: pure, the same bytes each time, what `run` submits and `export` writes."""
