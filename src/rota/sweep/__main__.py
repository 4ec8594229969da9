"""``python -m rota.sweep --home DIR``: drives the searches of that folder's controller."""

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
    """Drive searches until standard input, which the controller holds open, ends."""
    parser = argparse.ArgumentParser(description="Carries on the searches of one controller.")
    parser.add_argument("--home", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    news = threading.Event()
    threading.Thread(target=_listen, args=(news,), daemon=True).start()

    def wait(pause_s: float, most_s: float) -> bool:
        time.sleep(pause_s)
        news.wait(most_s - pause_s)
        news.clear()
        return False

    with Client(folder=Folder(options.home)) as client:
        Driver(client).run(wait)


def _listen(news: threading.Event) -> None:
    """Read news from standard input, and exit this process at its end.

    It may exit at any point: everything it does can be repeated.
    """
    while os.read(sys.stdin.fileno(), 4096):
        news.set()
    os._exit(0)


if __name__ == "__main__":
    main()
