"""The one program that runs a Plan: it coordinates gangs and walks the stages.

Locally it is the supervisor process, on a cluster a pod. Ships into strangers' images: standard
library only, Python 3.9.
"""
