"""What lists and pages take with many jobs, what open dashboards cost, and from event to pixel.

    python bench/seen.py [--ended 100000] [--waiting 10000] [--readers 100] [--repeats 7]

Two clusters of `rota up` on one slot that is taken run side by side: one with so many jobs ended
and waiting, one with 1,000 in all; each with its `rota ui`. Printed are, as median of the repeats
with minimum and maximum:

- lists, why, and each page of the dashboard until all of its data has come, in ms, many against
  few;
- a decision of the controller, and its CPU time, while jobs come and go on the large cluster, with
  so many dashboards that follow its stream, and with so many pages of one, against none, in turn;
- in headless Chromium, where it is installed: the time from before a submission until the first
  page has drawn it, and frames a second while the timeline, all in sight, and the queue move.
"""

import argparse
import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import psutil
from _cycles import decision_cycles
from submissions import JOB, Server, send
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

from rota.client.client import Client
from rota.experiment.runs.live import cluster
from rota.folder import Folder
from rota.model.allocation import Allocation
from rota.model.commands import Launch
from rota.model.events import (
    CommandSent,
    Event,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    NodeLost,
)
from rota.model.job import JobSpec, JobState
from rota.store.events import EventStore

FEW_ENDED, FEW_WAITING = 900, 100
GPUS = 8  # of the node on which the jobs have run
RAN_S, AGO_S = 60.0, 30 * 86400.0
MOVES_S = 5.0  # for which frames are counted
LOAD_S = 15.0  # of jobs that come and go, with dashboards or without
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
LISTS = {
    "active jobs, a page": "/jobs?limit=200",
    "ended jobs, the newest": "/jobs?all=true&newest=true&limit=200",
    "failed jobs": "/jobs?state=FAILED&newest=true&limit=100",
    "jobs of a user": "/jobs?all=true&user=u3&newest=true&limit=200",
    "jobs of a tag that none has": "/jobs?all=true&tag=none",
    "nodes": "/nodes",
    "gauges": "/gauges",
    "why the last one waits": "/jobs/{last}/explain",
    "a job": "/jobs/{last}",
}
PAGES = {
    "page: cluster": "/",
    "page: queue": "/queue",
    "page: job": "/job/{last}",
    "page: timeline": "/timeline",
    "timeline's pieces": "/data/timeline",
    "page: searches": "/searches",
    "page: people": "/people",
    "page: decisions": "/decisions",
}
READERS = """
import asyncio, sys
from pathlib import Path
from rota.client.client import Client
from rota.client.events import Connected
from rota.folder import Folder

async def read():
    with Client(folder=Folder(Path(sys.argv[1]))) as client:
        async for told in client.events():
            if isinstance(told, Connected):
                print("up", flush=True)

async def main():
    await asyncio.gather(*(read() for _ in range(int(sys.argv[2]))))

asyncio.run(main())
"""
WAITING = "[data-command='rota ps --filter state=PENDING'] b"  # their number, on the first page
# Resolves with the time at which the page has drawn another number of jobs that wait.
DRAWN = """selector => { window.drawn = new Promise(done => {
    const number = document.querySelector(selector), before = number.textContent;
    const told = () => requestAnimationFrame(() => requestAnimationFrame(() => done(Date.now())));
    const watch = new MutationObserver(() => {
        if (number.textContent !== before) { watch.disconnect(); told(); } });
    watch.observe(number, { subtree: true, childList: true, characterData: true });
}); }"""
FRAMES = """async ([seconds, what]) => {
    const move = what === "scroll"
        ? (() => { const rows = document.querySelector(".ag-body-viewport");
            const most = rows.scrollHeight - rows.clientHeight;
            return n => { rows.scrollTop = (n * 120) % most; }; })()
        : (() => { const canvas = document.querySelector(".timeline canvas"); canvas.focus();
            return n => canvas.dispatchEvent(new KeyboardEvent("keydown",
                { key: n % 120 < 60 ? "ArrowLeft" : "ArrowRight", bubbles: true })); })();
    const began = performance.now();
    let frames = 0, last = began, longest = 0, now = began;
    while (now - began < seconds * 1000) {
        move(frames);
        now = await new Promise(requestAnimationFrame);
        longest = Math.max(longest, now - last);
        last = now;
        frames += 1;
    }
    return [frames / seconds, longest];
}"""


class Spread(NamedTuple):
    """Measured values, as they are printed."""

    values: Sequence[float]

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{median(self.values):.1f} ({low:.1f}, {high:.1f})"


class Side:
    """A cluster with jobs, and its dashboard."""

    def __init__(self, home: Path, client: Client, last: str) -> None:
        told = json.loads((home / "server.json").read_text())
        self.home, self.client, self.last = home, client, last
        self.port, self.process = int(told["url"].rpartition(":")[2]), psutil.Process(told["pid"])
        self.headers = {"Authorization": f"Bearer {(home / 'token').read_text().strip()}"}
        self.ui_port, self.cookie = 0, ""

    def api_ms(self, path: str) -> float:
        """What a call of the API takes."""
        return taken_ms(self.port, f"/api/v1{path.format(last=self.last)}", self.headers)

    def page_ms(self, path: str) -> float:
        """What a page of the dashboard takes until it has all of its data, or a part of that."""
        path = path.format(last=self.last)
        if path.startswith("/data/"):
            return taken_ms(self.ui_port, path, {"Cookie": self.cookie})
        began = time.perf_counter()
        asyncio.run(open_page(self.ui_port, self.cookie, path, until_whole))
        return 1e3 * (time.perf_counter() - began)

    def sign_in(self, link: str) -> None:
        """Take a session by a link of the dashboard's."""
        url, _, rest = link.partition("//")[2].partition("/")
        self.ui_port = int(url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", self.ui_port, timeout=60)
        connection.request("GET", f"/{rest}")
        self.cookie = str(connection.getresponse().getheader("Set-Cookie")).partition(";")[0]
        connection.close()


def taken_ms(port: int, path: str, headers: dict[str, str]) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    began = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    took = time.perf_counter() - began
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {answer.reason}")
    return 1e3 * took


async def open_page(
    port: int, cookie: str, path: str, read: Callable[[ClientConnection], Awaitable[None]]
) -> None:
    """Open a page of the dashboard as a browser does, and ``read`` what it is sent."""
    host, headers = f"127.0.0.1:{port}", {"Cookie": cookie}
    async with httpx.AsyncClient(
        headers=headers, trust_env=False, verify=False, timeout=60
    ) as http:
        page = (await http.get(f"http://{host}{path}")).raise_for_status().text
    query = {
        "EIO": "4",
        "transport": "websocket",
        "client_id": page.partition("'client_id': '")[2].partition("'")[0],
        "next_message_id": "0",
        "implicit_handshake": "true",
        "tab_id": str(uuid.uuid4()),
        "document_id": str(uuid.uuid4()),
    }
    async with connect(
        f"ws://{host}/_nicegui_ws/socket.io/?{httpx.QueryParams(query)}",
        origin=Origin(f"http://{host}"),
        additional_headers=headers,
        proxy=None,
        max_size=None,
        compression=None,
        open_timeout=60,
    ) as socket:
        await socket.recv()
        await socket.send("40")
        await read(socket)


async def until_whole(socket: ClientConnection) -> None:
    """Read until the page has been updated once."""
    while "rota.tick" not in (message := str(await socket.recv())):
        if message == "2":
            await socket.send("3")


def hold_pages(port: int, cookie: str, last: str, count: int) -> None:
    """Hold so many pages open until killed; print a line for each that has its data."""
    paths = [path.format(last=last) for path in PAGES.values() if not path.startswith("/data/")]

    async def hold(path: str) -> None:
        async def read(socket: ClientConnection) -> None:
            await until_whole(socket)
            opening.release()
            print("up", flush=True)
            async for message in socket:
                if message == "2":
                    await socket.send("3")

        await opening.acquire()
        await open_page(port, cookie, path, read)

    async def run() -> None:
        await asyncio.gather(*(hold(paths[each % len(paths)]) for each in range(count)))

    opening = asyncio.Semaphore(4)
    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-") as base, ExitStack() as stack:
        many = stack.enter_context(side(Path(base, "many"), options.ended, options.waiting))
        few = stack.enter_context(side(Path(base, "few"), FEW_ENDED, FEW_WAITING))
        print(f"{options.ended:,} jobs ended and {options.waiting:,} wait; beside, 1,000 in all")
        tell_lists(many, few, options.repeats)
        tell_dashboards(many, options.readers, options.repeats)
        if (chromium := shutil.which("chromium")) is None:
            print("no chromium is installed: nothing is seen")
        else:
            tell_pixels(many, few, chromium, options.repeats)


# -- clusters with jobs ----------------------------------------------------------------------------


@contextmanager
def side(home: Path, ended: int, waiting: int) -> Iterator[Side]:
    """A cluster on whose slot a job runs, with so many jobs ended and waiting, and its pages."""
    with closing(EventStore(Folder(home / "state").create().database)) as store:
        for first in range(0, ended, 10_000):
            rows = range(first, min(ended, first + 10_000))
            store.append([*([joined()] if not first else []), *past(rows, ended)])
        store.append([NodeLost(time.time() - 1000.0, "past")])
    with cluster(home / "state", gpus=1, policy="fifo-backfill") as client, dashboard(home) as link:
        told = Side(home / "state", client, str(ended + waiting + 1))
        server = Server(
            told.port, "".join(f"{k}: {v}\r\n" for k, v in told.headers.items()), told.process
        )
        send(server, 1 + waiting, 16, "first")
        told.sign_in(link())
        yield told


def joined() -> Event:
    return NodeJoined(time.time() - AGO_S, "past", GPUS, "cpu")


def past(rows: range, ended: int) -> list[Event]:
    """What has happened to these of the ended jobs, one after another on each GPU."""
    began_s = time.time() - AGO_S + 60.0
    every_s = (AGO_S - 7200.0) / max(1, ended // GPUS)
    events: list[Event] = []
    for row in rows:
        at_s = began_s + row // GPUS * every_s
        spec = JobSpec(
            str(row + 1), 1, at_s, name=f"past{row % 5000}", user=f"u{row % 7}", vc=f"q{row % 3}"
        )
        place = Allocation(((0, 1 << row % GPUS),))
        outcome = JobState.SUCCEEDED if row % 50 else JobState.FAILED
        events += [
            JobSubmitted(at_s, spec),
            CommandSent(at_s, Launch(row + 1, row, 1, 1, place)),
            JobLaunched(at_s + 1, row, 1),
            JobFinished(at_s + min(RAN_S, every_s / 2), row, outcome),
        ]
    return events


@contextmanager
def dashboard(home: Path) -> Iterator[Callable[[], str]]:
    """`rota ui` of the cluster; yields what gives a new sign-in link."""
    command = [sys.executable, "-m", "rota.cli.main", "ui", "--no-open", "--port", "0"]
    environment = os.environ | {"ROTA_HOME": str(home / "state")}

    def link() -> str:
        done = subprocess.run(
            command[:-2], env=environment, capture_output=True, text=True, check=True
        )
        return next(word for word in done.stderr.split() if word.startswith("http"))

    with (
        open(home / "ui.log", "w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            while not (home / "state/ui.json").exists():
                if process.poll() is not None:
                    raise SystemExit((home / "ui.log").read_text())
                time.sleep(0.05)
            yield link
        finally:
            process.terminate()


# -- lists and pages -------------------------------------------------------------------------------


def tell_lists(many: Side, few: Side, repeats: int) -> None:
    print(f"\n{'ms':<30}{'many':>24}{'few':>24}{'times':>8}")
    for paths, taken in ((LISTS, Side.api_ms), (PAGES, Side.page_ms)):
        for name, path in paths.items():
            taken(many, path), taken(few, path)
            pairs = [(taken(many, path), taken(few, path)) for _ in range(repeats)]
            sides = [Spread(column) for column in zip(*pairs, strict=True)]
            times = median(sides[0].values) / median(sides[1].values)
            print(f"{name:<30}{sides[0]!s:>24}{sides[1]!s:>24}{times:>8.1f}", flush=True)


# -- open dashboards -------------------------------------------------------------------------------


def tell_dashboards(many: Side, readers: int, repeats: int) -> None:
    streams = [sys.executable, "-c", READERS, str(many.home), str(readers)]
    place = (many.ui_port, many.cookie, many.last, readers)
    pages = [sys.executable, "-c", f"import seen; seen.hold_pages(*{place!r})"]
    kinds = {"none": None, f"{readers} streams": streams, f"{readers} pages": pages}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(max(2, repeats // 2)):
        for kind, command in kinds.items():
            with viewers(command, readers):
                found[kind].append(decisions(many))
    print(f"\n{'open dashboards':<30}{'a decision, ms':>24}{'times':>8}{'CPU, %':>24}")
    alone = median(took_ms for took_ms, _ in found["none"])
    for kind, rounds in found.items():
        took_ms, cpu = (Spread(column) for column in zip(*rounds, strict=True))
        times = median(took_ms.values) / alone
        print(f"{kind:<30}{took_ms!s:>24}{times:>8.2f}{cpu!s:>24}", flush=True)


@contextmanager
def viewers(command: list[str] | None, count: int) -> Iterator[None]:
    """Have so many viewers in a process of the lowest priority: theirs are other machines."""
    if command is None:
        yield
        return
    here = Path(__file__).parent
    with subprocess.Popen(
        ["nice", "-n", "19", *command], stdout=subprocess.PIPE, text=True, cwd=here
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(count):
                if not process.stdout.readline():
                    raise SystemExit("not all dashboards could be opened")
            yield
        finally:
            process.kill()


def decisions(many: Side) -> tuple[float, float]:
    """A decision's mean in ms, and the controller's CPU in percent, while jobs come and go."""
    before, cpu, began_s = (
        decision_cycles(many.port, many.headers),
        many.process.cpu_times(),
        time.monotonic(),
    )
    job = 0
    while time.monotonic() < began_s + LOAD_S:
        at_s = time.monotonic()
        told = many.client.submit(JOB | {"workdir": str(many.home), "name": f"comes{job}"})
        many.client.cancel(str(told["id"]))
        job += 1
        time.sleep(max(0.0, at_s + 0.1 - time.monotonic()))
    spent, now = decision_cycles(many.port, many.headers), many.process.cpu_times()
    busy_s = now.user + now.system - cpu.user - cpu.system
    mean_s = (spent[0] - before[0]) / max(1.0, spent[1] - before[1])
    return 1e3 * mean_s, 100 * busy_s / (time.monotonic() - began_s)


# -- what is seen ----------------------------------------------------------------------------------


def tell_pixels(many: Side, few: Side, chromium: str, repeats: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=SWITCHES)
        print(f"\n{'in Chromium':<30}{'many':>24}{'few':>24}")
        seen = [Spread(pixels_ms(browser, each, 3 * repeats)) for each in (many, few)]
        print(f"{'from event to pixel, ms':<30}{seen[0]!s:>24}{seen[1]!s:>24}", flush=True)
        for name, path, what in (
            ("timeline moves, frames a s", "/timeline", "pan"),
            ("queue scrolls, frames a s", "/queue", "scroll"),
        ):
            page = opened(browser, many, path)
            page.wait_for_timeout(3000)
            told = [page.evaluate(FRAMES, [MOVES_S, what]) for _ in range(3)]
            frames, longest = (Spread(column) for column in zip(*told, strict=True))
            print(f"{name:<30}{frames!s:>24}   longest frame, ms: {longest}", flush=True)
            page.context.close()
        browser.close()


def opened(browser: Any, side: Side, path: str) -> Any:
    """A page of the dashboard that follows its cluster."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    name, _, value = side.cookie.partition("=")
    url = f"http://127.0.0.1:{side.ui_port}"
    context.add_cookies([{"name": name, "value": value, "url": url}])
    page = context.new_page()
    page.goto(url + path.format(last=side.last))
    page.locator("header >> text=GPUs in use").wait_for()
    return page


def pixels_ms(browser: Any, side: Side, repeats: int) -> list[float]:
    """From before a submission until the page has drawn that another job waits."""
    page, took = opened(browser, side, "/"), []
    job = JOB | {"workdir": str(side.home)}
    for _ in range(repeats):
        page.evaluate(DRAWN, WAITING)
        began_ms = 1e3 * time.time()
        told = side.client.submit(job)
        took.append(page.evaluate("window.drawn") - began_ms)
        page.evaluate(DRAWN, WAITING)
        side.client.cancel(str(told["id"]))
        page.evaluate("window.drawn")
    page.context.close()
    return took


if __name__ == "__main__":
    main()
