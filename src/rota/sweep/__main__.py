"""``python -m rota.sweep --home DIR``: carries on the searches of that folder's controller."""

import argparse
import logging
import os
import sys
import threading
import time

from rota.client.client import Client
from rota.folder import Folder
from rota.sweep.driver import Driver


def main() -> None:
    """Carry searches on until standard input ends, which the controller holds open."""
    parser = argparse.ArgumentParser(description="Carries on the searches of one controller.")
    parser.add_argument("--home", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    threading.Thread(target=_end_with_input, daemon=True).start()
    with Client(folder=Folder(options.home)) as client:
        Driver(client).run(_sleep)


def _sleep(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False


def _end_with_input() -> None:
    """End this process with its input, whatever it is at: all that it does can be done again."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
