"""What an extra brings is told by the names of its packages."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rota.errors import pip_install

TOP = Path(__file__).parents[2]
EXTRAS = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_the_command_names_the_packages_of_the_extra_alone(extra):
    words = shlex.split(pip_install(extra))
    assert words[:2] == ["pip", "install"]
    assert len(words[2:]) == len(EXTRAS[extra])
    names = [re.match(r"[\w.-]+", each)[0].lower() for each in words[2:]]
    assert sorted(names) == sorted(re.match(r"[\w.-]+", n)[0].lower() for n in EXTRAS[extra])


def test_every_extra_that_a_message_names_exists():
    text = "".join(file.read_text() for file in (TOP / "src").rglob("*.py"))
    named = set(re.findall(r"pip_install\([\"'](\w+)[\"']\)", text))
    assert named and named <= EXTRAS.keys()


def test_without_the_packages_of_rota_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: None)
    assert pip_install("ui") == "install Rota with its extra ui"
