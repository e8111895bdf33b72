"""The embedded default: a gang of plain processes on this machine."""
