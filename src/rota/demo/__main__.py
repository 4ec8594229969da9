"""``python -m rota.demo``: the same trainings twice on this machine, and once in the simulator."""

import argparse
import os
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
from rota.demo.workload import TRAININGS, examples_folder, fields
from rota.errors import RotaError


def main() -> None:
    """Run the demo and say where its report is."""
    parser = argparse.ArgumentParser(prog="python -m rota.demo", description=main.__doc__)
    parser.add_argument("--slots", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quantum", type=float, default=1.0, help="seconds a turn lasts")
    parser.add_argument("--steps", type=int, help="end each training after so many steps")
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
    """Both measured runs, and what the simulator says to them.

    ``check`` is called a few times a second, and may end it by raising.
    """
    examples = examples_folder()
    extra = f"--steps {options.steps}" if options.steps else ""
    jobs = [fields(training, examples, extra) for training in TRAININGS]
    console.print(
        f"[bold]{len(jobs)} trainings, {options.slots} slots.[/bold] First they take turns of "
        f"{options.quantum:g} s (gandiva), then they run one after the other (fifo)."
    )
    slicing = run(console, home / "gandiva", "gandiva", jobs, options, check)
    fifo = run(console, home / "fifo", "fifo", jobs, options, check)
    return compare(slicing, fifo, options.quantum)


def run(
    console: Console,
    home: Path,
    policy: str,
    jobs: list[dict[str, object]],
    options: argparse.Namespace,
    check: Callable[[], None],
) -> Run:
    """One measured run with its progress on the terminal."""

    def watch(now: list[dict[str, Any]]) -> None:
        check()
        screen.show(now)

    settings = settings_of(policy, options.quantum)
    began = time.monotonic()
    with Screen(console, policy, options.slots) as screen:
        done = run_workload(
            home, jobs, policy=policy, settings=settings, gpus=options.slots, watch=watch
        )
    console.print(f"{policy}: all done in {time.monotonic() - began:.0f} s")
    return done


if __name__ == "__main__":
    main()
