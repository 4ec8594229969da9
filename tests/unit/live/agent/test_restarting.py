"""What an agent makes of the ends of processes that it has asked to end."""

import asyncio
import json
import os

import pytest
from tests.support.attempts import attempt_in

from rota.folder import Folder
from rota.live.agent.attempt import Attempt

EARLY, LATE = -5.0, 5.0  # seconds from the SIGTERM to the end


class Asked:
    """An attempt of two ranks whose processes have been asked to end."""

    def __init__(self, folder):
        self.folder, self.heard = Folder(folder).attempt("here", "5", 1), []
        self.folder.mkdir(parents=True)
        record = {"job_id": "5", "attempt": 1, "suspension": "process", "max_world": 1}
        record |= {"slots": 2, "members": [0, 1], "generation": 0, "gpus": [0, 1]}
        record |= {"movable": True, "visible": None, "method": ["restart", ""]}
        record |= {"program": {"suspend": "restart", "grace_s": 60.0}}
        self.attempt = attempt_in(self.folder, record, self.heard.append)
        self.attempt.state = "running"
        self.attempt.pausing.suspend(7)

    def ends(self, *ranks, set_s=0.0, knows_boottime=True):
        """The ranks have ended: ``(code, seconds from the SIGTERM)`` each.

        Their shims' clocks are by ``set_s`` ahead of the agent's.
        """
        asked = self.attempt.record.vacated
        for index, (code, after_s) in enumerate(ranks):
            exit_ = {"code": code, "at_s": asked.at_s + after_s + set_s}
            if knows_boottime:
                exit_["boottime_s"] = asked.asked_boottime_s + after_s
            (self.folder / f"rank{index}.exit").write_text(json.dumps(exit_))
            self.attempt.ranks[index].read_exit()
        self.attempt.check_end()

    def written(self):
        return json.loads((self.folder / "attempt.json").read_text())


@pytest.fixture
def asked(tmp_path):
    """Run a story with an attempt in an event loop of its own."""

    def run(story):
        async def main():
            story(Asked(tmp_path))

        asyncio.run(main())

    return run


@pytest.mark.parametrize(
    "ends",
    [
        ((0, LATE), (0, LATE)),
        ((-15, LATE), (1, LATE)),
        ((-9, LATE), (0, LATE)),
        ((0, EARLY), (-15, LATE)),  # one had done its part: it starts with the others
    ],
)
def test_ends_that_were_asked_for_suspend_the_attempt(asked, ends):
    def story(it):
        it.ends(*ends)
        assert (it.attempt.state, it.attempt.ended) == ("suspended", None)
        assert [m["command_id"] for m in it.heard if m["type"] == "done"] == [7]
        assert it.attempt.memory()["memory"]["where"] == "checkpoint"
        record = it.written()
        assert record["vacated"] == {"arenas": {}, "bytes": None, "at_s": record["suspended_s"]}

    asked(story)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (((0, EARLY), (0, EARLY)), 0),
        (((3, EARLY), (0, LATE)), 3),
        (((0, LATE), (-11, EARLY)), -11),
    ],
)
def test_a_program_that_had_ended_by_itself_before_has_ended(asked, ends, code):
    def story(it):
        it.ends(*ends)
        assert it.attempt.ended["exit_code"] == code
        assert not [m for m in it.heard if m["type"] == "done"]

    asked(story)


def test_the_attempt_is_written_down_as_leaving_before_anybody_is_asked(asked):
    def story(it):
        vacated = it.written()["vacated"]
        assert vacated["grace_ends_s"] == pytest.approx(vacated["at_s"] + 60.0)
        assert (it.folder / "rank0.grace").exists()
        assert it.attempt.state == "suspending"
        it.attempt.pausing.suspend(8)  # the controller repeats itself under another number
        it.ends((0, LATE), (0, LATE))
        assert [m["command_id"] for m in it.heard if m["type"] == "done"] == [8]

    asked(story)


def test_a_full_disk_leaves_the_attempt_as_it_is(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    async def main():
        monkeypatch.setattr(Attempt, "save", full)
        it = Asked(tmp_path)
        assert it.attempt.state == "running"
        assert not it.attempt.is_vacated
        (failed,) = [m for m in it.heard if m["type"] == "failed"]
        assert failed["command_id"] == 7
        assert "No space left on device" in failed["error"]
        assert not list(tmp_path.rglob("*.grace"))  # else its shim would wait for its orphans

    asyncio.run(main())


@pytest.mark.parametrize(("code", "told"), [(0, None), (-15, None), (3, 3), (-9, -9)])
def test_how_the_program_ended_and_what_it_saved_is_told(asked, tmp_path, code, told):
    checkpoints = Folder(tmp_path).checkpoints("5")
    (checkpoints / "new").mkdir(parents=True)

    def story(it):
        asked_s = (it.folder / "rank0.grace").stat().st_mtime
        ages = {"old.pt": -10.0, "new/step-1.pt": 1.0, "new/step-2.pt": 2.0}
        for name, after_s in ages.items():
            file = checkpoints / name
            file.touch()
            os.utime(file, (asked_s + after_s, asked_s + after_s))
        it.ends((0, LATE), (code, LATE))
        (done,) = [m for m in it.heard if m["type"] == "done"]
        assert (done["exit_code"], done["saved"]) == (told, "new/step-2.pt")

    asked(story)


@pytest.mark.parametrize("set_s", [-3600.0, 3600.0])
def test_a_clock_that_was_set_tells_nothing_of_which_end_was_asked_for(asked, set_s):
    def story(it):
        it.ends((0, LATE), (0, LATE), set_s=set_s)
        assert (it.attempt.state, it.attempt.ended) == ("suspended", None)

    asked(story)


def test_ends_that_an_older_shim_has_told_go_by_the_clock(asked):
    def story(it):
        it.ends((0, EARLY), (0, EARLY), knows_boottime=False)
        assert it.attempt.ended["exit_code"] == 0

    asked(story)
