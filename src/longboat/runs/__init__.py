"""Reading runs: which there are, how they stand, what they wrote, why they ended.

Everything here reads a run directory that another process may be writing at the same moment.
Only the store changes anything, and only whole runs. Nothing here prints or starts processes.
"""
