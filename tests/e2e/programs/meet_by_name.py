"""A parameter server stays; workers reach every peer that TF_CONFIG names, then leave."""

import json
import os
import socket
import time

config = json.loads(os.environ["TF_CONFIG"])
if os.environ["LONGBOAT_ROLE"] == "ps":
    time.sleep(600)
for role, peers in sorted(config["cluster"].items()):
    for peer in peers:
        host, _, port = peer.rpartition(":")
        print(role, host, socket.gethostbyname(host), port, flush=True)
