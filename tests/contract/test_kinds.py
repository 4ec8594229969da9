"""Each kind of event and of command has an entry in every place that must know it.

CONTRIBUTING.md ("A new command or event") tells what each place is for.
"""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from rota.live.agent import agent
from rota.live.controller import dispatch
from rota.model import commands, events
from rota.model.state import commands as command_state
from rota.model.state import state
from rota.report import history, timeline
from rota.sim import machine
from rota.store.codec import decode
from rota.testing.store_contract import every_event

ROOT = Path(__file__).parents[2]
EVENTS, COMMANDS = get_args(events.Event), get_args(commands.Command)
EVENT_TABLES = {
    "HANDLERS of src/rota/model/state/state.py": state.HANDLERS,
    "HANDLERS of src/rota/report/history.py": history.HANDLERS,
    "HANDLERS of src/rota/report/timeline.py": timeline.HANDLERS,
}
COMMAND_TABLES = {
    "RULES of src/rota/model/commands.py": commands.RULES,
    "SENT of src/rota/model/state/commands.py": command_state.SENT,
    "FAILED of src/rota/model/state/commands.py": command_state.FAILED,
    "CARRIED_OUT of src/rota/sim/machine.py": machine.CARRIED_OUT,
    "FIELDS of src/rota/live/controller/dispatch.py": dispatch.FIELDS,
}


def declared(module):
    """The kinds that a module declares: named tuples that begin as all events, or commands, do."""
    classes = [each for each in vars(module).values() if hasattr(each, "_fields")]
    own = [each for each in classes if each.__module__ == module.__name__]
    return {each for each in own if each._fields[0] in ("at_s", "command_id")}


def mentions(kind):
    """Places in which a kind has to be named, and whether it is."""
    concepts = (ROOT / "docs/reference/concepts.md").read_text()
    logged = [decode(json.loads(line)) for line in stored().splitlines()]
    sent = [each.command for each in logged if isinstance(each, events.CommandSent)]
    made = every_event()
    made += [each.command for each in made if isinstance(each, events.CommandSent)]
    return {
        "docs/reference/concepts.md": f"`{kind.__name__}`" in concepts,
        "every_event of src/rota/testing/store_contract.py": kind in map(type, made),
        "tests/unit/store/stored_events.jsonl": kind in map(type, logged + sent),
    }


def mentions_of_command(kind):
    diff, sessions = source("model/decide/diff.py"), source("live/controller/agent_sessions.py")
    name = kind.__name__
    return {
        "src/rota/model/decide/diff.py, which sends it": bool(re.search(rf"\b{name}\b", diff)),
        "CARRIED_OUT of src/rota/live/agent/agent.py": name.lower() in agent.CARRIED_OUT,
        "src/rota/live/controller/agent_sessions.py, which hears of it": bool(
            re.search(rf"\b{name}\b", sessions)
        ),
    }


def source(path):
    return (ROOT / "src/rota" / path).read_text()


def stored():
    return (ROOT / "tests/unit/store/stored_events.jsonl").read_text()


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_has_an_entry_everywhere(kind):
    places = {place: kind in table for place, table in EVENT_TABLES.items()} | mentions(kind)
    missing = [place for place, known in places.items() if not known]
    assert not missing, f"{kind.__name__} is missing in " + "; ".join(missing)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_a_command_has_an_entry_everywhere(kind):
    places = {place: kind in table for place, table in COMMAND_TABLES.items()}
    places |= mentions(kind) | mentions_of_command(kind)
    missing = [place for place, known in places.items() if not known]
    assert not missing, f"{kind.__name__} is missing in " + "; ".join(missing)


@pytest.mark.parametrize("module", [events, commands], ids=["events", "commands"])
def test_every_declared_kind_is_in_the_union(module):
    unknown = declared(module) - {*EVENTS, *COMMANDS}
    where = f"the union at the end of {module.__name__}"
    assert not unknown, ", ".join(kind.__name__ for kind in unknown) + f" is missing in {where}"


def test_the_tables_have_no_entries_for_anything_else():
    for kinds, tables in ((EVENTS, EVENT_TABLES), (COMMANDS, COMMAND_TABLES)):
        for place, table in tables.items():
            assert set(table) <= set(kinds), place
