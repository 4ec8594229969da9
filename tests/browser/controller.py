"""The program ``rota`` with a role: the actions that a file names, all while it is not there."""

import sys
from pathlib import Path

from rota.cli.main import main
from rota.server import roles

ROLE = Path(sys.argv.pop(1))


def _allowed() -> frozenset[str]:
    return frozenset(ROLE.read_text().split() if ROLE.exists() else roles.ACTIONS)


if __name__ == "__main__":
    roles.allowed = _allowed
    main()
