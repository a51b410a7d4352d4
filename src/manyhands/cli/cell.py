"""The process of one cell: runs the command, and ends when the comparison ends.

``python -m manyhands.cli.cell PARENT train …``
"""

from __future__ import annotations

import sys

from manyhands.backends.processes.child import die_with


def main() -> int:
    parent, *words = sys.argv[1:]
    die_with(int(parent))
    sys.argv = ["manyhands", *words]  # recorded as the run's command
    from manyhands.cli import main as command

    return command(words)


if __name__ == "__main__":
    sys.exit(main())
