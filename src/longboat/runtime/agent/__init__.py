"""The agent: the program next to every rank. It starts the user's process, watches it and reports to the driver.

The same program runs next to a local process and in a pod.
"""
