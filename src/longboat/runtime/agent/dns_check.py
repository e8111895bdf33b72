"""Whether the name servers of this machine or pod answer at all: what tells a wrong name from a missing DNS."""

from __future__ import annotations

import os
import socket
from typing import List, Tuple

CONFIG = "/etc/resolv.conf"
PATIENCE = 1.0
MOST = 2
"""Name servers that are asked; each may take the whole patience."""


def facts(config: str = CONFIG, port: int = 53) -> Tuple[str, ...]:
    """One line for each name server: does it answer?"""
    found = _servers(config)
    if not found:
        return (f"{config} names no name server",)
    return tuple(_fact(server, config, port) for server in found[:MOST])


def _servers(config: str) -> List[str]:
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [words[1] for words in lines if words[:1] == ["nameserver"] and len(words) > 1]


def _fact(server: str, config: str, port: int) -> str:
    if _answers(server, port):
        return f"the name server {server} ({config}) answers: it does not know the name"
    return f"the name server {server} ({config}) did not answer within {PATIENCE:g} s"


def _answers(server: str, port: int) -> bool:
    """Asks for the root's address, which any server says something about."""
    number = os.urandom(2)
    question = number + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x00" + b"\x00\x01\x00\x01"
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.settimeout(PATIENCE)
            asking.connect((server, port))
            asking.send(question)
            return asking.recv(512)[:2] == number
    except OSError:
        return False
