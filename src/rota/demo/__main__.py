"""``python -m rota.demo``: the same trainings under three policies, and in the simulator."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from rota.demo.cluster import Run, run_workload
from rota.demo.figures import Comparison, compare, settings_of
from rota.demo.screen import Screen
from rota.demo.stopping import stoppable
from rota.demo.story import print_story, write_report
from rota.demo.workload import MIX, examples_folder, fields
from rota.errors import RotaError

SLOTS = 2  # the long training takes both
POLICIES = {
    "gandiva": "the default; they take turns of {turn:g} s",
    "tiresias": "whoever has had least goes first, without knowing how long anybody takes",
    "fifo": "one after the other, as queues do",
}


def main() -> None:
    """Run the demo and print the path of its report."""
    parser = argparse.ArgumentParser(prog="python -m rota.demo", description=main.__doc__)
    parser.add_argument("--quantum", type=float, default=1.0, help="seconds a turn lasts")
    parser.add_argument("--steps", type=int, help="end each after so many steps, for a short try")
    parser.add_argument("--report", type=Path, default=Path("reports/demo.html"))
    options = parser.parse_args()
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="rota-demo-"))
    try:
        with stoppable() as check:
            compared = measure(console, home, options, check)
        print_story(console, compared)
        options.report.parent.mkdir(parents=True, exist_ok=True)
        write_report(options.report, compared)
        console.print(f"\nThe report, with who held which slot when: [bold]{options.report}[/bold]")
    except RotaError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(
    console: Console, home: Path, options: argparse.Namespace, check: Callable[[], None]
) -> Comparison:
    """The measured runs, beside the simulator's predictions.

    ``check`` is called a few times a second, and may end the run by raising.
    """
    examples = examples_folder()
    trainings = [each._replace(at_s=0.0) for each in MIX] if options.steps else MIX
    jobs = [(each.at_s, fields(each, examples, options.steps)) for each in trainings]
    console.print(
        f"[bold]{len(jobs)} trainings, {SLOTS} slots:[/bold] a long one on both is ahead of short "
        "ones, and a small one comes late. They run three times:"
    )
    for policy, words in POLICIES.items():
        console.print(f"- {policy}: {words.format(turn=options.quantum)}")
    settings = {policy: settings_of(policy, options.quantum) for policy in POLICIES}
    runs = {
        policy: run(console, home / policy, policy, settings[policy], jobs, check)
        for policy in POLICIES
    }
    return compare(runs, trainings, settings)


def run(
    console: Console,
    home: Path,
    policy: str,
    settings: dict[str, str],
    jobs: list[tuple[float, dict[str, object]]],
    check: Callable[[], None],
) -> Run:
    """One measured run with its progress on the terminal."""

    def watch(now: list[dict[str, Any]]) -> None:
        check()
        screen.show(now)

    began = time.monotonic()
    with Screen(console, policy, SLOTS) as screen:
        done = run_workload(home, jobs, policy=policy, settings=settings, gpus=SLOTS, watch=watch)
    console.print(f"{policy}: all done in {time.monotonic() - began:.0f} s")
    return done


if __name__ == "__main__":
    main()
