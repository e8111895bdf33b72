"""A name server that is asked for real: one that answers, one that is silent, none at all."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from longboat.runtime.agent import dns_check, exit_causes
from longboat.runtime.causes import CauseKind


def test_a_server_that_answers_is_told_from_one_that_is_silent(tmp_path: Path) -> None:
    config = tmp_path / "resolv.conf"
    config.write_text("search svc.local\nnameserver 127.0.0.1\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        silent = dns_check.facts(str(config), port)
        server.recv(512)

        def answer() -> None:
            question, who = server.recvfrom(512)
            server.sendto(question[:2] + b"\x81\x83" + question[4:], who)

        thread = threading.Thread(target=answer)
        thread.start()
        answered = dns_check.facts(str(config), port)
        thread.join()
    assert silent == (f"no response from the name server 127.0.0.1 ({config}) within 1 s",)
    assert answered == (f"the name server 127.0.0.1 ({config}) answers, but does not know the name",)


def test_a_machine_without_a_name_server_says_so(tmp_path: Path) -> None:
    assert dns_check.facts(str(tmp_path / "none")) == (f"{tmp_path}/none lists no name server",)


def test_a_name_without_an_address_is_a_cause_of_its_own(tmp_path: Path) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/code/train.py", line 3, in <module>',
        '    socket.create_connection(("train-worker-0.gang", 80))',
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ]
    cause = exit_causes.of_exit(1, 0, lines, 0, False, str(tmp_path))
    assert cause is not None
    assert cause.kind is CauseKind.NO_NAME
    assert any("name server" in fact for fact in cause.evidence)
