"""Reading runs: the list of runs, their states, logs and causes.

Another process may write the run directory at the same time. Only `store` changes anything: it creates and removes
runs. Nothing here prints or starts processes.
"""
