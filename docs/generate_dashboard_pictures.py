"""Write docs/dashboard.png and docs/dashboard-job.png: a small cluster's dashboard in Chromium.

python docs/generate_dashboard_pictures.py [--chromium /usr/bin/chromium]

The cluster runs on this machine, on a folder of its own, with trainings of the examples.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import sync_playwright

from rota.client.client import Client
from rota.errors import RotaError

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
ROTA = Path(sys.executable).with_name("rota")
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SWITCHES += ["--disable-component-update", "--disable-sync"]
JOBS = (
    ("digits-cnn", "rota_digits_cnn.py --steps 100000 --target 2", 1),
    ("digits-vit", "rota_digits_vit.py --steps 100000 --target 2 --batch-size 32", 1),
    ("char-lstm", "rota_char_lstm.py --steps 100000 --target 0", 1),
    ("wide-mlp", "rota_gang.py --steps 100000 --target 2 --batch-size 1024", 2),
    ("wide-late", "rota_gang.py --steps 100000 --target 2 --batch-size 1024", 4),
)
TRAIN_S = 40.0  # before the pictures are taken
SETTLE_S = 6.0  # on each page
PICTURES = {"/": "dashboard.png", "/job/1": "dashboard-job.png"}  # by page
WIDTH, HEIGHT = 1180, 760
PATIENCE_S = 60.0  # for a page


def main() -> int:
    """Start the cluster, the trainings and the dashboard, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    browser = parser.parse_args().chromium
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"ROTA_HOME": home}
        workdir = shutil.copytree(EXAMPLES, Path(home, "examples"))
        up = [ROTA, "up", "--gpus", "4", "--nodes", "2", "--set", "quantum_s=10"]
        cluster = subprocess.Popen(up, env=environment, stderr=subprocess.DEVNULL)
        dashboard = None
        try:
            with Client(folder=home) as client:
                _await_nodes(client)
                for name, command, gpus in JOBS:
                    job = {"name": name, "run": f"python {command}", "workdir": str(workdir)}
                    client.submit(job | {"resources": {"gpus": gpus}, "queue": "vision"})
                dashboard = subprocess.Popen(
                    [ROTA, "ui", "--no-open"],
                    env=environment,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                assert dashboard.stderr is not None
                link = dashboard.stderr.readline().split()[-1]
                time.sleep(TRAIN_S)
                photograph(browser, link, PICTURES, DOCS, SETTLE_S)
        finally:
            if dashboard is not None:
                dashboard.terminate()
                dashboard.wait()
            subprocess.run([ROTA, "down", "--now"], env=environment, check=True)
            cluster.wait()
    return 0


def _await_nodes(client: Client) -> None:
    while True:
        try:
            if sum(node["connected"] for node in client.nodes()) == 2:
                return
        except RotaError:
            pass
        time.sleep(0.2)


def photograph(
    browser: str, link: str, pictures: Mapping[str, str], folder: Path, settle_s: float
) -> None:
    """Sign in by the link, and write a picture of each page, by its path, into the folder."""
    url = link.partition("/sign-in")[0]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=SWITCHES)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(link)
        page.locator("h1").wait_for()  # the link leads to the first page, a moment later
        for path, name in pictures.items():
            page.goto(url + path)
            page.locator("canvas").first.wait_for()
            page.wait_for_timeout(1000 * settle_s)
            page.screenshot(path=folder / name)
        chromium.close()


if __name__ == "__main__":
    sys.exit(main())
