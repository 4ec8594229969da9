"""Write docs/report.png: the beginning of a report of ``rota sim compare``, as Chromium shows it.

python docs/generate_report_picture.py [--chromium /usr/bin/chromium]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).with_name("report.png")
JOBS = ["--generate", "philly", "--num-jobs", "300", "--loads", "0.9", "--seeds", "0-3"]
POLICIES = ["fifo-backfill", "gandiva", "tiresias", "srsf"]
ALONE = ["--headless", "--no-sandbox", "--disable-gpu"]
OFFLINE = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
SIGHT = ["--hide-scrollbars", "--virtual-time-budget=8000"]
WIDTH, HEIGHT = 960, 1130


def main() -> int:
    """Run the comparison in a folder of its own, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="chromium")
    browser = parser.parse_args().chromium
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.html")
        compare = [Path(sys.executable).with_name("rota"), "sim", "compare", *JOBS]
        compare += ["--cluster", "8x4", *(f"--policy={name}" for name in POLICIES)]
        subprocess.run([*compare, "--html", report], check=True)
        size = f"--window-size={WIDTH},{HEIGHT}"
        paths = [f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}"]
        subprocess.run(
            [browser, *ALONE, *OFFLINE, *SIGHT, size, *paths, report.as_uri()], check=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
