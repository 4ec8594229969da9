"""What ``rota doctor`` finds, where the machine is not as it should be."""

import os
import socket
from pathlib import Path

import pytest

from rota.cli import doctor
from rota.cli.doctor import FAILS, NOTE, OK, WARNING
from rota.folder import Folder


def test_without_a_trial_it_looks_at_everything_and_starts_nothing(rota, tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    code, out, _ = rota("doctor", "--quick")
    assert code == 0, out
    names = ("software", "devices", "host memory", "ports", "clock", "CPU cores", "open files")
    begun = {line.partition("  ")[0] for line in out.splitlines()}
    assert begun >= {*names, "state folder"}
    assert "suspend, resume" not in begun
    assert not (tmp_path / "home").exists()


def test_what_fails_is_told_by_the_exit_code(rota, monkeypatch):
    def refused(*_):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    code, out, _ = rota("doctor", "--quick")
    assert code == 1
    assert "127.0.0.1 can't be listened on: Cannot assign requested address" in out


@pytest.mark.parametrize(
    ("lines", "kind", "verdict"),
    [
        ("/dev/sda / ext4 rw 0 0", "ext4", OK),
        ("/dev/sda / ext4 rw 0 0\nserver:/home {} nfs4 rw 0 0", "nfs4", WARNING),
        ("server:/x {} nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0", "nfs4", WARNING),
        ("/dev/sda / ext4 rw 0 0\nserver:/x {}x nfs4 rw 0 0", "ext4", OK),
        ("", "an unknown file system", OK),
    ],
)
def test_a_state_folder_on_a_network_is_warned_of(tmp_path, lines, kind, verdict):
    mounts = tmp_path / "mounts"
    mounts.write_text(lines.format(tmp_path))
    found = doctor.state_folder(tmp_path / "home", mounts)
    assert found.verdict == verdict
    assert f"on {kind}" in found.text


@pytest.mark.parametrize(("ahead_s", "verdict"), [(0.0, OK), (-3.0, OK), (60.0, WARNING)])
def test_a_clock_that_is_not_the_folder_s_is_told_of(tmp_path, monkeypatch, ahead_s, verdict):
    real = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - ahead_s)
    found = doctor.clock(tmp_path)
    assert found.verdict == verdict
    assert verdict == OK or "+60 s off" in found.text


def test_a_folder_that_cannot_be_written_is_told_of():
    assert doctor.clock(Path("/proc/self")).verdict == FAILS
    assert doctor.host_memory(Path("/nowhere")).verdict == WARNING


@pytest.mark.parametrize(("most", "verdict"), [(1024, WARNING), (65536, OK), (-1, OK)])
def test_few_open_files_are_warned_of(most, verdict):
    assert doctor.open_files(most).verdict == verdict


def test_without_torch_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert doctor.tried_suspension() == ("suspend, resume", NOTE, "left out: there is no torch")


def test_the_means_that_hold_jobs_to_their_cores_are_told():
    assert doctor.held_cores("cgroup v1", ["no v2"]).text == (
        "cgroup v1 holds jobs to any part of a core"
    )
    found = doctor.held_cores("", ["no v2", "no v1"])
    assert found.verdict == doctor.NOTE
    assert "affinity holds jobs to whole cores (no v2; no v1)" in found.text


def test_the_folder_looked_at_is_the_one_that_rota_up_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "there"))
    found = {each.what: each.text for each in doctor.findings(Folder())}
    assert found["state folder"].startswith(f"{tmp_path / 'there'}, on ")
    assert os.listdir(tmp_path) == []
