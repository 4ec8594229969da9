"""One cluster, one dashboard and one Chromium for all tests of pages."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.client.client import Client
from rota.errors import RotaError
from rota.folder import Folder

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv/browser/node_modules/axe-core/axe.min.js"
TRAINING = Path(__file__).with_name("training.py")
CONTROLLER = Path(__file__).with_name("controller.py")
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
SWITCHES += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
DEADLINE_S = 60.0
MARK = "DASHBOARD_UNDER_TEST"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in this folder need a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.process)


def until(condition: Callable[[], Any], what: str) -> Any:
    """What ``condition`` returns once that is true; fails with ``what`` if it never is."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {DEADLINE_S:.0f} s")
        time.sleep(0.02)
    return found


class Cluster:
    """``rota up`` on a private folder, with a client."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder, self.role = base, Folder(base / "home"), base / "role"
        self.client = Client(folder=self.folder)
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """That of its programs: of Rota's settings, only those of the test."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
        return kept | {MARK: str(self.base), "ROTA_HOME": str(self.folder.path)}

    def rota(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the program, its output into a file of the test's folder."""
        with open(self.base / f"{words[0]}.log", "a") as log:
            command = [sys.executable, str(CONTROLLER), str(self.role), *words]
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment())

    def allow(self, actions: str | None) -> None:
        """Let users take these actions only from now on, named with spaces between; None: all."""
        if actions is None:
            self.role.unlink(missing_ok=True)
        else:
            fresh = self.role.with_suffix(".new")
            fresh.write_text(actions)
            fresh.replace(self.role)

    def up(self) -> None:
        """Start the controller; returns when it answers and has both nodes."""
        self.process = self.rota("up", "--gpus", "4", "--nodes", "2", "--set", "quantum_s=2")
        until(self._is_up, "the cluster is up")

    def _is_up(self) -> bool:
        with contextlib.suppress(RotaError, OSError, ValueError):
            pid = json.loads(self.folder.server.read_text())["pid"]
            nodes = self.client.nodes() if self.process and pid == self.process.pid else []
            return sum(node["connected"] for node in nodes) == 2
        return False

    def kill_controller(self) -> None:
        """Kill the controller; its jobs and agents go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def submit(self, name: str = "training", gpus: int = 1, **fields: Any) -> str:
        """Submit a training that takes a step for each byte of its file; returns its id."""
        gate = self.base / f"{name}.gate"
        gate.touch()
        run = f"{sys.executable} {TRAINING} {gate}"
        job = {"name": name, "run": run, "workdir": str(self.base), "resources": {"gpus": gpus}}
        return str(self.client.submit(job | fields)["id"])

    def steps(self, name: str, count: int) -> None:
        """Let a training take so many more steps."""
        with open(self.base / f"{name}.gate", "a") as gate:
            gate.write("." * count)

    def state(self, job: str) -> str:
        """The state of a job."""
        return str(self.client.job(job)["state"])

    def until_state(self, job: str, state: str) -> None:
        """Returns once a job is in this state."""
        until(lambda: self.state(job) == state, f"job {job} is {state}")

    def close(self) -> None:
        """End all that was started."""
        with contextlib.suppress(RotaError):
            self.client.shut_down()
        self.client.close()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.base):
                    process.kill()


class Dashboard:
    """``rota ui`` of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.process = cluster.rota("ui", "--no-open")
        until(cluster.folder.ui.exists, "the dashboard serves")
        until(lambda: "sign-in" in self.told(), "the dashboard tells its link")
        self.url = str(json.loads(cluster.folder.ui.read_text())["url"])

    def told(self) -> str:
        """What it has printed."""
        return (self.cluster.base / "ui.log").read_text()

    def link(self) -> str:
        """A new sign-in link, by ``rota ui`` again."""
        command = [sys.executable, "-m", "rota.cli.main", "ui", "--no-open"]
        done = subprocess.run(
            command, env=self.cluster.environment(), capture_output=True, text=True, check=True
        )
        return next(word for word in done.stderr.split() if word.startswith("http"))

    def close(self) -> None:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(DEADLINE_S) in (0, 130)
        assert not self.cluster.folder.ui.exists()


class Seen:
    """A page in the browser, and what went wrong in it."""

    def __init__(self, page: Any, dashboard: Dashboard) -> None:
        self.page, self.url, self.wrong = page, dashboard.url, []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", self._note_request)
        page.set_default_timeout(DEADLINE_S * 1000)

    def _note_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, self.url.replace("http", "ws"), "data:", "blob:")):
            self.wrong.append(f"request to {request.url}")

    def open(self, path: str) -> Any:
        """Go to a page of the dashboard; returns when it follows the cluster."""
        self.page.goto(self.url + path)
        self.page.locator("header >> text=GPUs in use").wait_for()
        return self.page

    def axe(self) -> list[str]:
        """What axe-core finds wrong with the page as it is."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run()")["violations"]
        return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def _lacking() -> str | None:
    if shutil.which("chromium") is None:
        return "there is no chromium; tests/browser/set-up.sh installs it"
    if not AXE.exists():
        return "there is no axe-core; tests/browser/set-up.sh installs it"
    return None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := _lacking():
        if os.environ.get("ROTA_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def dashboard(cluster: Cluster) -> Iterator[Dashboard]:
    dashboard = Dashboard(cluster)
    yield dashboard
    dashboard.close()


@pytest.fixture(scope="module")
def browser(dashboard: Dashboard) -> Iterator[Any]:
    """Chromium. Playwright's event loop runs as long, and tests of other folders have their own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=SWITCHES
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def signed_in(browser: Any, dashboard: Dashboard) -> Iterator[Any]:
    """A browser's context that holds a session."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.goto(dashboard.link())
    page.locator("h1").wait_for()
    page.close()
    yield context
    context.close()


@pytest.fixture
def seen(signed_in: Any, dashboard: Dashboard) -> Iterator[Seen]:
    """A page of the signed-in browser; it fails the test if anything goes wrong in it."""
    page = signed_in.new_page()
    seen = Seen(page, dashboard)
    yield seen
    page.close()
    assert seen.wrong == []
