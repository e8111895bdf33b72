"""Whether this pod still is the run's driver: there must never be two at once.

A node that is cut off runs on, and its pod is given up and made elsewhere. So the driver asks the
API server every few seconds for its own pod. It leaves when that is to go or is another one's, for
whoever marked it may not be able to tell it; and when nobody has answered for as long as its lease.
So a driver whose pod was told to go, a lease and a margin ago, drives no more, whatever became of
its node: then its pod may be deleted by force (`engines.kubernetes.lost`).

Nothing is lost when a driver leaves: the next one goes on from the run directory.
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
"""Seconds between two questions, at most."""
TRIES = 4
"""Questions in a lease, at least: one that is not answered must not end a driver."""


class Leadership:
    def __init__(self, api: Api, pod: str, uid: str, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        """api: one that does not try again by itself, so that an answer is late by one timeout at most."""
        self._api, self._pod, self._uid, self._lease, self._clock = api, pod, uid, lease, clock
        self._answered = clock()

    def begin(self) -> None:
        """Returns once the API server has said that this pod is the driver; waits for ever where it is not."""
        self._answered = -math.inf
        while self.over():
            time.sleep(LOOK / 50)
        threading.Thread(target=self._keep, daemon=True).start()

    def over(self) -> Optional[str]:
        """Why this pod may not drive any more; None: it may, as far as one knows."""
        asked = self._clock()
        try:
            pod = self._api.find("Pod", self._pod)
        except ApiError as error:
            if not error.transient:  # it answers; what it refuses is told where it is needed
                self._answered = asked
            if self._clock() < self._answered + self._lease:  # by now, not when it was asked: that takes its time
                return None
            return f"the API server has not answered for {self._lease:g} s: {error.message}"
        self._answered = asked
        if pod is None or pod["metadata"]["uid"] != self._uid:
            return "another pod has taken its place"
        if pod["metadata"].get("deletionTimestamp"):
            return "its pod was told to go"
        return None

    def _keep(self) -> None:
        while True:
            left = self._answered + self._lease - self._clock()
            time.sleep(max(0.0, min(LOOK, self._lease / TRIES, left)))
            why = self.over()
            if why:
                sys.stderr.write(f"the driver leaves: {why}\n")
                sys.stderr.flush()
                os._exit(1)
