"""The local engine: a gang of processes on this machine."""
