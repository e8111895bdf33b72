"""A Plan as Kubernetes objects, as `run` submits and `export` writes them. Pure and reproducible."""
