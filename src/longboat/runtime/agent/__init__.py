"""The program beside every rank: it starts the user's process, watches it and tells the driver.

The same beside a local process and in a pod. Ships into strangers' images: standard library
only, Python 3.9.
"""
