"""``rota ui`` without its toolkit."""

from rota.cli import ui as command
from rota.errors import pip_install


def test_without_the_toolkit_it_says_what_installs_it(monkeypatch, rota):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, _, error = rota("ui")
    assert code == 3 and pip_install("ui") in error
