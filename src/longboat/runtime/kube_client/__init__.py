"""A small client for the Kubernetes API, shared by pods and the CLI."""
