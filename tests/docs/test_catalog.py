"""The tables of the catalogue's page are what the package ships, and nothing is left out."""

import importlib.util
from pathlib import Path

from rota.policy.placement.registry import PLACEMENTS
from rota.workload.catalog import load

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_those_of_the_package() -> None:
    spec = importlib.util.spec_from_file_location("generate_catalog", DOCS / "generate_catalog.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "research" / "catalog.md").read_text()
    assert page == module.page(), "run: docs/generate_catalog.py"


def test_every_model_and_placement_is_there() -> None:
    text = (DOCS / "research" / "catalog.md").read_text()
    assert not [name for name in (*load(), *PLACEMENTS) if f"| `{name}` |" not in text]
