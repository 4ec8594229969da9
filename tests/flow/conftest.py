"""Islands of real processes: a host, and its forked workers."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from rota import flow
from rota.flow.page import FINISHED, HELD_BYTES, READY, SLOTS, Page
from support import flow_functions
from support.flow_functions import Gate

TESTS = Path(__file__).parents[1]
DEADLINE_S = 60.0  # for what must come: a failure, and no measure
_gates = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.process)


def until(condition: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait until the condition is true."""
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s, f"not so: {what}"
        time.sleep(0.002)


class Island:
    """A local island, what its page says, and gates."""

    def __init__(self, folder: Path, local: Path, devices: int, host: int) -> None:
        self.folder, self.local, self.devices = folder, local, devices
        self.host = psutil.Process(host)
        self.page = Page(folder / "page", devices, SLOTS)

    def connect(self, **options: object) -> flow.Client:
        return flow.connect(self.folder, **options)  # type: ignore[arg-type]

    def finished(self, client: flow.Client, worker: int = 0) -> int:
        """The last operation that a worker has finished."""
        return self.page.of(client._slots[worker], FINISHED)

    def ready(self, client: flow.Client, worker: int) -> int:
        """The last operation whose inputs a worker has."""
        return self.page.of(client._slots[worker], READY)

    def held_bytes(self, client: flow.Client) -> list[int]:
        """The bytes of buffers that each worker has."""
        return [self.page.of(slot, HELD_BYTES) for slot in client._slots]

    def workers(self) -> list[psutil.Process]:
        """The workers that there are, as they were forked."""
        return sorted(self.host.children(), key=lambda each: (each.create_time(), each.pid))

    def record(self) -> bytes:
        """What operations have recorded."""
        path = self.local / "record"
        return path.read_bytes() if path.exists() else b""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where workers find the functions, gates and the record of tests."""
    made = tmp_path_factory.mktemp("flow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(flow_functions.FOLDER, str(made))
        path = str(TESTS), os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        yield made


@pytest.fixture(scope="session")
def island(folder: Path) -> Iterator[Island]:
    """An island of three devices, for all tests of this folder."""
    torch.set_num_threads(1)
    with flow.LocalIsland(3) as local:
        yield Island(local.folder, folder, 3, local._process.pid)


@pytest.fixture
def client(island: Island) -> Iterator[flow.Client]:
    """A client on two devices."""
    with island.connect(devices=[0, 1]) as connected:
        yield connected


@pytest.fixture
def gate(folder: Path) -> Iterator[Gate]:
    """A gate of this test's own."""
    made = Gate(folder, next(_gates))
    yield made
    made.close()
