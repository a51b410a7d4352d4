"""Asks a cluster whether it takes this token: ``python -m manyhands.backends.ray.probe HOST:PORT``.

A separate process asks. Ray waits for minutes at a wrong address and ends a process that has no
token. The last word printed is one of those below.
"""

from __future__ import annotations

import subprocess
import sys

from manyhands.backends.ray import calling_ray

PATIENCE_S = 6.0
WELCOME, BAD_TOKEN, SILENT = "welcome", "bad-token", "silent"


def ask(address: str) -> str:
    """With the token and the mode of this process' environment."""
    words = [sys.executable, "-P", "-m", __name__, address]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return SILENT
    said = done.stdout.split()
    return said[-1] if said and said[-1] in (WELCOME, BAD_TOKEN) else SILENT


def main(address: str) -> str:
    return WELCOME if calling_ray.is_welcome(address, PATIENCE_S / 2) else BAD_TOKEN


if __name__ == "__main__":
    print(main(sys.argv[1]))
