"""Runs on a cluster, seen from a laptop: submit, watch, ask, stop, remove. The cluster drives."""
