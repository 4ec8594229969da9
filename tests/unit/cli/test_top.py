"""``rota top``: what it needs. The screens themselves are in tests/process."""

import importlib.util
import subprocess
import sys

from rota.cli.topboard import ANSWERS, BACK, KEYS
from rota.errors import pip_install


def test_without_textual_it_says_how_to_install_it(rota, monkeypatch):
    find_spec = importlib.util.find_spec

    def without(name, *more):
        return None if name == "textual" else find_spec(name, *more)

    monkeypatch.setattr("rota.cli.top.find_spec", without)
    code, _, err = rota("top")
    assert (code, err) == (
        2,
        "error: rota top needs Textual, which is not installed; install it with: "
        f"{pip_install('tui')}\n",
    )


def test_without_a_terminal_it_names_what_prints_a_list(rota):
    code, _, err = rota("top")
    assert code == 2
    assert "it needs a terminal; `rota ps --watch` prints a list of jobs" in err


def test_its_help_loads_no_textual():
    program = (
        "import sys; from rota.cli.main import main\n"
        "try: main(['top', '--help'])\n"
        "except SystemExit: print('textual' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert out.stdout.endswith("False\n"), out.stderr


def test_no_key_has_two_meanings():
    keys = [key.key for key in (*KEYS, BACK, *ANSWERS)]
    assert len(keys) == len(set(keys))
