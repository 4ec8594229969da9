"""Logs of an earlier version, recorded on live clusters, replay to the same plans and commands.

``logs/NAME.jsonl`` has an event a line, as that version wrote it: suspensions and kills of the
controller under three policies, packs kept and undone, moves, GPU types, a search, sizes and
batches that changed. Marks of that version also had what policies told people, which is in the
notes of plans now: those entries are left out here, and are to come out as notes.
"""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import CommandSent, DecisionTaken
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.policy.stages.selection import SPARING
from rota.store.codec import decode

LOGS = sorted((Path(__file__).parent / "logs").glob("*.jsonl"))
TOLD = {"why", "warnings", "trials", "tried"}


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def policy_of(log):
    """The policy that decided, made anew from the settings that its decisions name."""
    identity = next(event.policy for event in log if isinstance(event, DecisionTaken))
    name, _, settings = identity.partition(" ")
    default = dict(pairs(create(name).identity))
    given = {key: value for key, value in pairs(settings) if value != default[key]}
    if name == "gandiva":
        given.setdefault("fair_share", "no")  # in that version priorities and users took no turns
    policy = create(name, {key: text.strip("(),") for key, text in given.items()})
    assert set(pairs(settings)) <= set(pairs(policy.identity))  # which may have newer ones, too
    if policy.stages is SPARING:
        policy.stages = None  # in that version jobs that had just begun were not spared by default
    return policy


def pairs(settings):
    return re.findall(r"(\S+?)=(\([^)]*\)|\S+)", settings)


class Memory:
    """What a policy remembers after each decision, without what it told people."""

    def __init__(self):
        self.marks, self.own = {}, None

    def note(self, decision):
        for row, mark in decision.marks.items():
            plain = json.loads(json.dumps(mark))
            if isinstance(plain, dict):
                plain = {key: value for key, value in plain.items() if key not in TOLD}
            self.marks[row] = plain
        if decision.policy_mark is not None:
            self.own = json.loads(json.dumps(decision.policy_mark))
        return {row: mark for row, mark in self.marks.items() if mark}, self.own


@pytest.mark.parametrize("anew", [False, True], ids=["one policy", "made anew for each decision"])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_plan_and_command_comes_out_again(path, anew):
    log = [decode(record) for record in records(path)]
    state, policy = ClusterState(), policy_of(log)
    then, now = Memory(), Memory()
    decisions = commands = 0
    for sent, group in groupby(log, key=lambda event: isinstance(event, CommandSent)):
        events = list(group)
        if sent:
            state.epoch = events[0].command.epoch
            assert diff(state) == [event.command for event in events]
            commands += len(events)
        for event in events:
            if not isinstance(event, DecisionTaken):
                state.apply(event)
                continue
            policy = policy_of(log) if anew else policy
            made = take_decision(state, policy, event.at_s)
            by_whom = made._replace(policy=event.policy)  # see policy_of
            assert by_whom[:5] == event[:5], "when, by whom, allocations and reasons"
            assert made.wake_at_s == event.wake_at_s
            assert now.note(made) == then.note(event)
            decisions += 1
        state.validate()
    assert decisions > 10
    assert commands > 4


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_what_marks_told_people_is_told_by_notes(path):
    told, state = {}, ClusterState()
    for record in records(path):
        state.apply(decode(record))
        for row, mark in record.get("marks", {}).items() if "marks" in record else ():
            if isinstance(mark, dict):
                told[int(row)] = mark
    probes = {row: mark["trials"] for row, mark in told.items() if "trials" in mark}
    for row, last in probes.items():
        known = [list(probe[:5]) for probe in state.notes.probes[row]]
        assert known[-len(last) :] == last
    assert probes.keys() == state.notes.probes.keys()


def test_old_logs_tell_of_probes_packs_sizes_and_warnings():
    """So that what the other tests say of them is not empty."""
    text = "".join(path.read_text() for path in LOGS)
    for entry in ("why", "trials", "tried", "pack"):
        assert f'"{entry}":' in text
