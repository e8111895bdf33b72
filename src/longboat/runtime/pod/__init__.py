"""Longboat inside a cluster: what runs in the pods of driver, ranks and model servers.

What runs only on the user's machine is in `engines.kubernetes`.
"""
