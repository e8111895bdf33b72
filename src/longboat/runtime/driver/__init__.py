"""The driver: the program that runs a Plan. It coordinates gangs and walks through the stages.

Locally it is the process you start, on a cluster a pod.
"""
