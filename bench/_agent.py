"""One agent that a benchmark drives by hand, from the project's test harness."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
LoneAgent = import_module("support.lone_agent").LoneAgent
