"""Leadership: whether this pod still is the run's driver. There must never be two at once.

A node that is cut off keeps running, while its pod is given up and created elsewhere. So the driver asks the
API server every few seconds for its own pod. It exits if that is being deleted or has been replaced (its node
may be unable to tell it), and if the API server did not respond for the length of its lease. So a driver whose
pod was deleted a lease and a margin ago no longer drives, whatever happened to its node: its pod may then be
deleted by force (`engines.kubernetes.lost_driver`).

Nothing is lost when a driver exits: the next one continues from the run directory.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import Callable, Optional

from longboat.runtime.kube_client.api import Api, ApiError

LOOK = 5.0
"""Most seconds between two checks."""
TRIES = 4
"""Fewest checks in a lease: one failed check must not end a driver."""


class Leadership:
    """Checks that this pod still is the driver, and ends the process if it is not."""

    def __init__(self, api: Api, pod: str, uid: str, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        """api: one without retries, so that an answer is late by at most one timeout."""
        self._api, self._pod, self._uid, self._lease, self._clock = api, pod, uid, lease, clock
        self._answered_at = clock()

    def begin(self) -> None:
        """Wait until the API server confirms that this pod is the driver, then check regularly."""
        self._answered_at = -math.inf
        while self.over():
            time.sleep(LOOK / 50)
        threading.Thread(target=self._check_regularly, daemon=True).start()

    def over(self) -> Optional[str]:
        """Why this pod may no longer drive; None if it may."""
        asked_at = self._clock()
        try:
            pod = self._api.find("Pod", self._pod)
        except ApiError as error:
            if not error.transient:  # it responds; the refusal is reported where it matters
                self._answered_at = asked_at
            if self._clock() < self._answered_at + self._lease:  # now, not when it was asked: that takes time
                return None
            return f"no response from the API server for {self._lease:g} s: {error.message}"
        self._answered_at = asked_at
        if pod is None or pod["metadata"]["uid"] != self._uid:
            return "another pod has replaced it"
        if pod["metadata"].get("deletionTimestamp"):
            return "its pod is being deleted"
        return None

    def _check_regularly(self) -> None:
        while True:
            left = self._answered_at + self._lease - self._clock()
            time.sleep(max(0.0, min(LOOK, self._lease / TRIES, left)))
            why = self.over()
            if why:
                sys.stderr.write(f"the driver exits: {why}\n")
                sys.stderr.flush()
                os._exit(1)
