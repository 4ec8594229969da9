"""Settings of all tests."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import kubernetes as kubernetes_engine
from support import ray as ray_engine
from support import slurm as engine

# How long examples take tells of a shared machine, and nothing of what is tested. The same examples
# are drawn in every run: `--hypothesis-profile=random` draws others, to look for faults.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", shared)
settings.register_profile("shared", shared, derandomize=True)
settings.load_profile("shared")

# A shell that runs the tests in the background has them ignore it, and all that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CLUSTERS = [Path(__file__).parent / name for name in ("process", "parity", "hosts", "engines")]
# Where `make test-cluster` looks beside.
OTHERS = [
    Path(__file__).parent / name
    for name in (
        "docs/test_examples.py",
        "contract/test_providers.py",
        "differential/test_corpus.py",
    )
]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Slurm]:
    """A Slurm with four nodes on this machine, started once for all tests of a process."""
    if reason := engine.why_none():
        pytest.skip(reason)
    with engine.slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray() -> Iterator[ray_engine.Ray]:
    """A Ray with two nodes on this machine, started once for all tests of a process."""
    if reason := ray_engine.why_none():
        assert "ROTA_TEST_PACKAGES" not in os.environ, reason
        pytest.skip(reason)
    with ray_engine.ray() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[kubernetes_engine.Kubernetes]:
    """A Kubernetes with three nodes on this machine, started once for all tests of a process."""
    if reason := kubernetes_engine.why_none():
        assert "ROTA_TEST_PACKAGES" not in os.environ or os.geteuid(), reason
        pytest.skip(reason)
    with kubernetes_engine.kubernetes(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All in the folders of real clusters are ``process``, and ``cluster`` unless ``live_path``."""
    _sample(config, items)
    for item in items:
        live, cluster = map(item.get_closest_marker, ("live_path", "cluster"))
        if any(folder in item.path.parents for folder in CLUSTERS):
            item.add_marker(pytest.mark.process)
            if not live:
                item.add_marker(pytest.mark.cluster)
        elif live or (cluster and item.path not in OTHERS):
            mark = (live or cluster).name
            raise pytest.UsageError(
                f"{item.nodeid} is marked {mark}; only tests of tests/process, tests/parity,"
                " tests/hosts and tests/engines are, examples of pages, providers' contracts, and"
                " the differential suite"
            )


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave so many cases of each test as it says that is ``sampled``, the first among them."""
    if not config.getoption("--sampled"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    dropped = {item for those in cases.values() for item in set(those) - set(_some(those))}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


def _some(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Those evenly between the first and the last, as many as the test's mark says."""
    (most,) = next(cases[0].iter_markers("sampled")).args
    count, last = min(most, len(cases)), len(cases) - 1
    return [cases[round(number * last / max(count - 1, 1))] for number in range(count)]


class TellsAtOnce:
    """A test that fails is named as it fails: a run that is cut short has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said = report.longreprtext.strip().splitlines() or [""]
            writer = self._config.get_terminal_writer()
            writer.line(f"\n{report.nodeid} ({report.when}): {said[-1][:200]}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TellsAtOnce(config))


def pytest_collection_finish() -> None:
    """What is loaded stays to the end; a search for garbage need not look at it each time."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Whether all cases of sampled tests run, and which run the chaos test draws."""
    parser.addoption("--sampled", action="store_true", help="run only some cases of such tests")
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seed", type=int, default=1, help="from which everything is drawn")
    group.addoption("--chaos-seconds", type=float, default=15.0, help="until the last fault")
    group.addoption("--chaos-policy", help="the policy; by default one that is drawn")
    group.addoption("--chaos-mix", help="kinds of jobs, with commas between; by default all")
