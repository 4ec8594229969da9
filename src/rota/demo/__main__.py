"""``python -m rota.demo``: trainings under the default policy; the simulator has the others."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from rota.demo.busy import RunDelay
from rota.demo.cluster import Run, run_workload
from rota.demo.figures import Comparison, compare, settings_of
from rota.demo.screen import ProgressLine
from rota.demo.stopping import stoppable
from rota.demo.story import print_story, write_report
from rota.demo.workload import LONG_MIX, MIX, Training, examples_folder, fields
from rota.errors import RotaError

SLOTS = 2  # the long training takes both
POLICIES = ("gandiva", "tiresias", "fifo", "fifo-backfill")  # the first is the default
RUN_BY_FULL = POLICIES[:3]
LIVE_S = 48.0  # from the start on; on quiet cores all is done before


def main() -> None:
    """Run the demo and print the path of its report."""
    parser = argparse.ArgumentParser(prog="python -m rota.demo", description=main.__doc__)
    parser.add_argument("--full", action="store_true", help="run longer, under three policies")
    parser.add_argument("--quantum", type=float, default=1.0, help="seconds a turn lasts")
    parser.add_argument("--steps", type=int, help="end each after so many steps, for a short try")
    parser.add_argument("--report", type=Path, default=Path("reports/demo.html"))
    options = parser.parse_args()
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="rota-demo-"))
    waiting = RunDelay(home, time.monotonic)
    try:
        with stoppable() as check:
            compared = measure(console, home, options, waiting, check)
        complaint = waiting.complaint()
        print_story(console, compared, complaint)
        options.report.parent.mkdir(parents=True, exist_ok=True)
        write_report(options.report, compared, complaint)
        console.print(f"\nWho held which slot when: {options.report}", soft_wrap=True)
    except RotaError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(
    console: Console,
    home: Path,
    options: argparse.Namespace,
    waiting: RunDelay,
    check: Callable[[], None],
) -> Comparison:
    """The measured runs, beside the simulator's predictions.

    ``check`` is called a few times a second, and may end the run by raising.
    """
    examples = examples_folder()
    trainings: tuple[Training, ...] = LONG_MIX if options.full else MIX
    if options.steps:
        trainings = tuple(each._replace(at_s=0.0, steps=options.steps) for each in trainings)
    live = RUN_BY_FULL if options.full else POLICIES[:1]
    until_s = inf if options.full else time.monotonic() + LIVE_S
    console.print(
        f"{len(trainings)} trainings on {SLOTS} slots of this machine: a long one on both is ahead "
        f"of short ones. They run under {', '.join(live)}; the simulator foretells other policies "
        "from their step times."
    )
    jobs = [(each.at_s, fields(each, examples, options.steps)) for each in trainings]
    settings = {policy: settings_of(policy, options.quantum) for policy in POLICIES}
    runs = {
        policy: run(
            *(console, home / policy, policy, settings[policy], trainings, jobs),
            *(waiting, check, until_s),
        )
        for policy in live
    }
    return compare(runs, trainings, settings)


def run(
    console: Console,
    home: Path,
    policy: str,
    settings: dict[str, str],
    trainings: tuple[Training, ...],
    jobs: list[tuple[float, dict[str, object]]],
    waiting: RunDelay,
    check: Callable[[], None],
    until_s: float,
) -> Run:
    """One measured run with its progress on the terminal."""

    def watch(now: list[dict[str, Any]]) -> None:
        check()
        waiting.look()
        line.show(now)

    with ProgressLine(console, policy, trainings, time.monotonic) as line:
        return run_workload(
            home,
            jobs,
            policy=policy,
            settings=settings,
            gpus=SLOTS,
            watch=watch,
            until_s=until_s,
        )


if __name__ == "__main__":
    main()
