"""Every example in the documentation runs, in the order in which a reader would try it.

Each page has an empty folder and one Python namespace. Fenced blocks in ``python`` and ``sh`` are
run; an HTML comment on the line before a block says otherwise:

    <!-- not run: reason -->   skip it
    <!-- file: NAME -->        write it to that file instead (of any language)
    <!-- output -->            a text block: what the last sh block printed, times of the run aside
    <!-- installed: MODULE --> an sh block: the page's pyproject.toml was installed with this module
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rota.demo.cluster import private_cluster

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A newcomer's `make test` runs the examples of the start pages, `make test-cluster` the others.
IN_TARGETS = [
    pytest.param(
        page, marks=[] if "start" in page.parts or page.parent == ROOT else pytest.mark.cluster
    )
    for page in PAGES
]
RUN = ("python", "sh")
SHOWN = ("text", "toml", "yaml")  # what readers look at; a marker may make files of them

FENCE = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (?P<verb>not run|file|output|installed)(?:: (?P<value>[^>]+?))? -->\n\Z")
LIVE = re.compile(
    r"\brota (run|submit|plan|ps|show|logs|why|wait|suspend|resume|cancel|nodes|sweep|report)\b"
    r"|Client\("
)
# What differs from run to run: the last column of a table of runs, and numbers of cpu_s.
VARYING = re.compile(r"(?<=\s)\d+\.\d\d$|(?<=\"cpu_s\": )[0-9.e-]+|(?<=CPU s)\s+[0-9.]+")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    verb: str
    value: str

    @property
    def is_live(self) -> bool:
        runs = self.language in RUN and self.verb not in ("not run", "file")
        return runs and bool(LIVE.search(self.text))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        marker = MARKER.search(text, 0, match.start())
        verb, value = (marker["verb"], marker["value"] or "") if marker else ("", "")
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match["language"], match["text"], verb, value))
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """Gives the state folder of a private cluster of two slots, started at the first call."""
    home = tmp_path_factory.mktemp("docs") / "home"
    running: list[Any] = []

    def start() -> Path:
        if not running:
            context = private_cluster(home, "gandiva", {"quantum_s": "1"}, 2)
            context.__enter__()
            running.append(context)
        return home

    yield start
    for context in running:
        context.__exit__(None, None, None)


class Reader:
    """Someone who works through one page."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self.printed = ""

    def does(self, block: Block) -> None:
        if block.verb == "file":
            (self.folder / block.value).write_text(block.text)
        elif block.verb == "output":
            assert _masked(block.text) == _masked(self.printed), f"{block.page}:{block.line}"
        elif block.language == "python":
            # As many newlines before it as there are lines above it, for its line in tracebacks.
            code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
            exec(code, self.names)
        elif block.language == "sh":
            self.printed = self._shell(block)

    def _shell(self, block: Block) -> str:
        environment = self.environment
        if block.verb == "installed":
            _install(self.folder, block.value)
            environment = environment | {"PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{block.page}:{block.line}: {done.stdout}"
        return done.stdout


def _install(folder: Path, module: str) -> None:
    """What ``pip install`` of a package with the page's pyproject.toml leaves behind."""
    import tomllib

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{module}-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    points = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")


def _masked(text: str) -> str:
    lines = [" ".join(VARYING.sub("#", line.rstrip()).split()) for line in text.splitlines()]
    return "\n".join(lines).strip()


@pytest.mark.process
@pytest.mark.parametrize("page", IN_TARGETS, ids=name_of)
def test_the_examples_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Callable[[], Path],
) -> None:
    blocks = blocks_of(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    of_this_run = ("ROTA_", "COLUMNS", "PYTEST_ADDOPTS")
    for variable in [name for name in os.environ if name.startswith(of_this_run)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    if any(block.is_live for block in blocks):
        monkeypatch.setenv("ROTA_HOME", str(cluster()))
    before = set(sys.modules)
    reader = Reader(tmp_path, dict(os.environ))
    try:
        for block in blocks:
            if block.verb != "not run":
                reader.does(block)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_its_language_and_every_skip_its_reason(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n```") % 2 == 0, "a fence is not closed"
    for block in blocks_of(page):
        where = f"{page}:{block.line}"
        known = block.language in RUN + SHOWN
        assert known, f"{where}: the block is of language {block.language!r}"
        if block.verb in ("not run", "file", "installed"):
            assert block.value.strip(), f"{where}: the marker '{block.verb}' needs its text"
        if block.verb == "output":
            assert block.language == "text", where
        if block.language in ("toml", "yaml"):
            assert block.verb == "file", f"{where}: name the file, so that it is tried"
    stray = re.findall(r"<!--(?! (?:not run: \S|file: \S|installed: \S|output -->)).*", text)
    assert not stray, f"{page}: markers that mean nothing: {stray}"
