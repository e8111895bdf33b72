"""Longboat inside a cluster: the driver's pod, and the small API client that it and the laptop share.

Everything that must run in a pod of a stranger's image stands here; what only a laptop does is
in `engines.kubernetes`. Ships into strangers' images: standard library only, Python 3.9.
"""
