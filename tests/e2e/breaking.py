"""Words to the repo's own test cluster: its nodes and its API server are ours to break."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("LONGBOAT_CLUSTER_ROOT") or Path(__file__).parents[2])
OURS = str(ROOT / ".cluster") in os.environ.get("KUBECONFIG", "")
"""Whether KUBECONFIG names such a cluster."""


def cluster(*words: str) -> None:
    """A word to the cluster that KUBECONFIG names."""
    name = Path(os.environ["KUBECONFIG"]).parent.name
    command = [sys.executable, "-m", "tests.cluster", "--name", name, *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
