"""DNS check: do the name servers of this machine or pod answer? Tells a wrong name from broken DNS."""

from __future__ import annotations

import os
import socket
from typing import List, Tuple

CONFIG = "/etc/resolv.conf"
PATIENCE = 1.0
MOST = 2
"""Name servers that are queried; each may take up to PATIENCE seconds."""


def facts(config: str = CONFIG, port: int = 53) -> Tuple[str, ...]:
    """One line for each name server: whether it answers."""
    servers = _servers(config)
    if not servers:
        return (f"{config} lists no name server",)
    return tuple(_fact(server, config, port) for server in servers[:MOST])


def _servers(config: str) -> List[str]:
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [fields[1] for fields in lines if fields[:1] == ["nameserver"] and len(fields) > 1]


def _fact(server: str, config: str, port: int) -> str:
    if _answers(server, port):
        return f"the name server {server} ({config}) answers, but does not know the name"
    return f"no response from the name server {server} ({config}) within {PATIENCE:g} s"


def _answers(server: str, port: int) -> bool:
    """Query the root's address, which every name server answers somehow."""
    query_id = os.urandom(2)
    query = query_id + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x00" + b"\x00\x01\x00\x01"
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.settimeout(PATIENCE)
            client.connect((server, port))
            client.send(query)
            return client.recv(512)[:2] == query_id
    except OSError:
        return False
