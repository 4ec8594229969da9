"""The folder with public data that some benchmarks need, which is no part of the repository."""

import argparse
from pathlib import Path


def add_data(parser: argparse.ArgumentParser) -> None:
    """Give the benchmark the option ``--data DIR``."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder with the public data")


def is_there(data: Path | None, *parts: str) -> bool:
    """Whether all ``parts`` are in the folder; if not, says that the benchmark is skipped."""
    if data is None:
        print(f"skipped: it needs {', '.join(parts)} of the public data; give --data DIR")
        return False
    absent = [str(data / part) for part in parts if not (data / part).exists()]
    if absent:
        print(f"skipped: there is no {', '.join(absent)}; give --data DIR")
    return not absent
