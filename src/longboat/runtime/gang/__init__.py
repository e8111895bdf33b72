"""Rules of a gang's generations: which ranks start, which are killed, what restarts, what the cause is.

`gang_events` defines the events and actions; `machine` turns events into actions. Pure: no clock, no socket.
"""
