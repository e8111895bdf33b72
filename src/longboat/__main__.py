from __future__ import annotations

import sys

from longboat.cli.entry import program

if __name__ == "__main__":
    sys.exit(program())
