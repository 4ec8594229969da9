"""Checkpoints move with a job where the nodes have no folder in common."""

import os

import pytest
from tests.unit.live.agent.test_migrate_in import BIG, PIECE_BYTES, Source, run

from rota.errors import AgentError
from rota.live.agent.migrate_checkpoints import (
    LISTING,
    PREFIX,
    Coming,
    abridged,
    describe,
    inside,
)
from rota.live.wire.frames import frames_of


@pytest.fixture
def there(tmp_path):
    """The checkpoint folder of job 7 on the node that it leaves."""
    folder = tmp_path / "there/checkpoints/7"
    for name, data in {
        "step-1/weights": b"w" * (PIECE_BYTES + 7),
        "a.part": b"a",
        "a": b"",
    }.items():
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_bytes(data)
    folder.joinpath("step-1/run.sh").write_text("exit")
    folder.joinpath("step-1/run.sh").chmod(0o750)
    folder.joinpath("empty").mkdir()
    folder.joinpath("latest").symlink_to("step-1")
    os.mkfifo(folder / "pipe")
    return folder


class Leaving(Source):
    """The node that job 7 leaves, with its checkpoints."""

    def __init__(self, checkpoints):
        super().__init__({"0.arena": BIG})
        self.told = describe(checkpoints)
        for file in self.told["files"]:
            path = inside(checkpoints, file["name"].removeprefix(PREFIX))
            self.files[file["name"]] = path.read_bytes()

    def state(self):
        files = self.files
        self.files = {"0.arena": files["0.arena"]}
        state = super().state() | {"checkpoints": self.told}
        self.files = files
        return state


def tree(folder):
    """Everything in a folder: where links lead, what files have in them and who may run them."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o777)
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
        if not path.is_fifo()
    }


def test_everything_comes_and_takes_the_place_of_what_is_there(tmp_path, there):
    here = tmp_path / "checkpoints/7"
    here.mkdir(parents=True)
    here.joinpath("of an earlier stay").write_text("old")
    run(tmp_path, Leaving(there))
    assert tree(here) == tree(there)
    assert "latest" in tree(here)
    assert [path.name for path in here.parent.iterdir()] == ["7"]
    assert len(tree(there)) == 7


def test_of_very_many_checkpoints_no_message_is_larger_than_a_frame(tmp_path):
    there, here = tmp_path / "there/checkpoints/7", tmp_path / "checkpoints/7"
    there.mkdir(parents=True)
    for number in range(5_000):
        there.joinpath(f"{number:06}-{'x' * 200}").write_bytes(b"%d" % number)
    source = Leaving(there)
    source.told = abridged(source.told, tmp_path)
    source.files[LISTING] = (tmp_path / LISTING).read_bytes()
    answer, largest = source.answer, [0]

    def measured(message, piece):
        (frame,) = frames_of({"type": "fetched", **message})
        largest[0] = max(largest[0], len(frame))
        answer(message, piece)

    source.answer = measured
    run(tmp_path, source)
    assert largest[0] < 1 << 18 < 1 << 20 < len(source.files[LISTING])
    assert sorted(os.listdir(here)) == sorted(os.listdir(there))
    assert here.joinpath(f"000123-{'x' * 200}").read_bytes() == b"123"
    assert not list(tmp_path.joinpath("jobs").rglob(LISTING))


def test_a_long_list_that_was_damaged_is_not_taken(tmp_path, there, monkeypatch):
    monkeypatch.setattr("rota.live.agent.migrate_checkpoints.MOST_LISTED_BYTES", 10)
    source = Leaving(there)
    source.told = abridged(source.told, tmp_path)
    source.files[LISTING] = (tmp_path / LISTING).read_bytes().replace(b"folders", b"holders")
    with pytest.raises(AgentError, match="the list of the checkpoints was damaged"):
        run(tmp_path, source)


def test_nothing_moves_within_one_folder(tmp_path, there):
    tmp_path.joinpath("checkpoints").symlink_to(there.parent)
    source = Leaving(there)
    run(tmp_path, source)
    assert {name for name, _ in source.asked} == {"0.arena"}
    assert len(tree(there)) == 7


def test_a_link_of_the_users_leads_to_the_same_folder_or_is_refused(tmp_path, there):
    chosen = tmp_path / "chosen"
    there.rename(chosen)
    there.symlink_to(chosen)
    here = tmp_path / "checkpoints/7"
    for _ in range(2):  # the second one replaces a link
        source = Leaving(there)
        run(tmp_path, source)
        assert here.readlink() == chosen
        assert {name for name, _ in source.asked} == {"0.arena"}
    assert list(here.parent.iterdir()) == [here]
    chosen.rename(tmp_path / "gone")
    with pytest.raises(AgentError, match="there is no such folder here"):
        run(tmp_path, Leaving(there))


def test_each_move_has_one_probe(there):
    first, second = describe(there)["probe"], describe(there)["probe"]
    assert first != second
    assert [path.name for path in there.parent.glob("7.probe-*")] == [second]


def test_what_was_begun_goes_on(tmp_path, there):
    draft = tmp_path / "checkpoints/7.coming/step-1"
    draft.mkdir(parents=True)
    draft.joinpath("weights").write_bytes(b"w" * PIECE_BYTES)
    jobs = tmp_path / "jobs/7/1"
    jobs.mkdir(parents=True)
    jobs.joinpath("arrival.json").write_text('{"state_id": "first"}')
    source = Leaving(there)
    run(tmp_path, source)
    asked = [offset for name, offset in source.asked if name.endswith("weights")]
    assert asked == [PIECE_BYTES]
    assert tree(tmp_path / "checkpoints/7") == tree(there)


def test_a_state_that_is_given_up_leaves_none(tmp_path, there):
    source = Leaving(there)
    source.damage = set(range(10**4))
    with pytest.raises(AgentError, match="came damaged"):
        run(tmp_path, source)
    source.arrival.discard()
    assert list(tmp_path.joinpath("checkpoints").iterdir()) == []


@pytest.mark.parametrize("name", ["../8/weights", "/etc/passwd", "a/../../b", "", ".", "a\0b"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    with pytest.raises(AgentError, match="no name of a checkpoint"):
        Coming(tmp_path / "7").path_of(PREFIX + name)
    with pytest.raises(AgentError, match="no name of a checkpoint"):
        inside(tmp_path, name)


def test_an_agent_of_before_tells_of_none(tmp_path):
    here = tmp_path / "checkpoints/7"
    here.mkdir(parents=True)
    here.joinpath("weights").write_text("own")
    run(tmp_path, Source({"0.arena": BIG}))
    assert here.joinpath("weights").read_text() == "own"
