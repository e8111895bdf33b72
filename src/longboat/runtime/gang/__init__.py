"""Generations: who starts, who is ended, what restarts, what is the cause. Pure, without clock or socket.

`words` are the events and actions, `machine` turns the ones into the others.
"""
