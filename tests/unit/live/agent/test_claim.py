from rota.folder import Folder
from rota.live.agent.claim import claim, release

A, B = "log-a 1.0", "log-b 1.0"


def launch(origin=A, mark=A, job_id="7", attempt=1):
    return {"job_id": job_id, "attempt": attempt, "origin": origin, "launch": mark}


def left(folder, job_id="7", attempt=1):
    """What an attempt may leave: its output, its exit, a checkpoint."""
    path = folder.attempt("n", job_id, attempt)
    path.mkdir(parents=True, exist_ok=True)
    (path / "rank0.exit").write_text("{}")
    folder.checkpoints(job_id).mkdir(parents=True, exist_ok=True)
    (folder.checkpoints(job_id) / "last").write_text("state")


def test_the_next_attempt_of_a_job_finds_what_the_job_has_left(tmp_path):
    folder = Folder(tmp_path)
    assert claim(folder, "n", launch()) == []
    left(folder)
    assert claim(folder, "n", launch()) == []  # the same command once more
    assert claim(folder, "n", launch(mark="log-a 2.0", attempt=2)) == []
    assert claim(folder, "other", launch(mark="log-a 2.0", attempt=2)) == []
    assert folder.attempt("n", "7", 1).joinpath("rank0.exit").exists()
    assert list(folder.attempt("n", "7", 2).iterdir()) == [folder.attempt("n", "7", 2) / "launch"]
    assert (folder.checkpoints("7") / "last").read_text() == "state"


def test_a_job_with_the_same_id_finds_nothing_of_another_job(tmp_path):
    folder = Folder(tmp_path)
    claim(folder, "n", launch())
    left(folder)
    for number, origin in enumerate((B, A), 1):
        said = claim(folder, "n", launch(origin, origin))
        aside = folder.node("n") / f"set-aside/7.{number}"
        checkpoints = tmp_path / f"checkpoints/set-aside/7.{number}"
        assert [str(aside) in said[0], str(checkpoints) in said[1], len(said)] == [True, True, 2]
        assert (aside / "1/rank0.exit").exists()
        assert (checkpoints / "last").exists()
        assert not folder.checkpoints("7").exists()
        assert [path.name for path in folder.attempt("n", "7", 1).iterdir()] == ["launch"]
        left(folder)


def test_checkpoints_of_another_are_found_on_a_node_that_the_other_was_never_on(tmp_path):
    folder = Folder(tmp_path)
    claim(folder, "n", launch())
    left(folder)
    assert len(claim(folder, "m", launch(B, B))) == 1
    assert not folder.checkpoints("7").exists()


def test_a_link_in_place_of_checkpoints_is_set_aside_and_what_it_leads_to_stays(tmp_path):
    folder = Folder(tmp_path)
    claim(folder, "n", launch())
    (tmp_path / "big").mkdir()
    folder.checkpoints("7").symlink_to(tmp_path / "big")
    claim(folder, "n", launch(B, B))
    assert (tmp_path / "checkpoints/set-aside/7.1").readlink() == tmp_path / "big"
    assert (tmp_path / "big").is_dir()


def test_an_attempt_with_a_number_that_was_used_finds_nothing_of_the_other(tmp_path):
    folder = Folder(tmp_path)
    claim(folder, "n", launch())
    left(folder)
    (said,) = claim(folder, "n", launch(mark="log-a 2.0"))
    assert str(folder.node("n") / "set-aside/7-1.1") in said
    assert not (folder.attempt("n", "7", 1) / "rank0.exit").exists()
    assert (folder.checkpoints("7") / "last").exists()


def test_what_was_left_before_there_were_marks_is_the_jobs_but_its_attempts_are_over(tmp_path):
    folder = Folder(tmp_path)
    left(folder)
    left(folder, attempt=2)
    assert len(claim(folder, "n", launch(attempt=2))) == 1
    assert folder.attempt("n", "7", 1).joinpath("rank0.exit").exists()
    assert not folder.attempt("n", "7", 2).joinpath("rank0.exit").exists()
    assert (folder.checkpoints("7") / "last").exists()
    assert len(claim(folder, "n", launch(B, B))) == 2  # it is marked by now


def test_nothing_is_left_of_a_job_that_has_left_the_node(tmp_path):
    folder = Folder(tmp_path)
    for attempt in (1, 2):
        claim(folder, "n", launch(mark=f"log-a {attempt}", attempt=attempt))
    release(folder.attempt("n", "7", 2))
    assert folder.attempt("n", "7", 1).exists()
    release(folder.attempt("n", "7", 1))
    assert list(folder.node("n").glob("jobs/*")) == []
