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
    """Hear of news by whatever comes as input, and end this process with that.

    Whatever it is at then: all that it does can be done again.
    """
    while os.read(sys.stdin.fileno(), 4096):
        news.set()
    os._exit(0)


if __name__ == "__main__":
    main()
