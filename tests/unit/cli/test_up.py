"""What `rota up` refuses, and sentences with which it greets."""

import pytest
import yaml

from rota.cli.up import greeting, share_of_one, up, without_listen
from rota.errors import InputError
from rota.folder import Folder
from rota.policy.registry import create

SHARED = {"fair_share": "user"}
ON_KUBERNETES = ("--on", "kubernetes", "--image", "registry.lab/rota:1")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({}, "policy: gandiva, with its defaults"),
        ({"quantum_s": "30"}, "policy: gandiva, quantum_s=30"),
    ],
    ids=["defaults", "a setting"],
)
def test_a_cluster_greets_in_six_lines_of_one_row_each(tmp_path, chosen, said):
    settings = create("gandiva", chosen).settings
    folder = Folder(tmp_path)
    lines = greeting(folder, "http://127.0.0.1:41489", "gandiva", settings, "lab (2 GPUs)")
    assert len(lines) == 6
    assert lines[:3] == ["rota is up at http://127.0.0.1:41489", said, "nodes:  lab (2 GPUs)"]
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 84


def test_shares_between_users_are_told_to_be_of_no_effect_while_there_is_one():
    assert "before there are jobs of a second user: all so far are of ann;" in share_of_one(
        SHARED, {"ann"}
    )
    assert "before there are jobs of a second user; fair_share=vc" in share_of_one(SHARED, set())
    assert share_of_one(SHARED, {"ann", "bob"}) == ""
    assert share_of_one({"fair_share": "vc"}, {"ann"}) == ""


def test_machines_that_cannot_call_are_named():
    told = "and gpu2, gpu10 joined the cluster: start it with --listen HOST:PORT, or their jobs"
    assert told in without_listen({"gpu10", "gpu2"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "gpu"], "--partition: it is for nodes of Slurm; give --on slurm"),
        (["--sbatch=--qos=high"], "--sbatch: it is for nodes of Slurm; give --on slurm"),
        (["--ray-address", "a:1"], "--ray-address: it is for nodes of Ray; give --on ray"),
        (["--on", "ray", "--account", "me"], "--account: it is for nodes of Slurm; give --on"),
        (["--on", "ray", "--ray-token", "no"], "--ray-token: /"),
        (["--on", "ray"], "--ray-token: RAY_AUTH_MODE is token, and Ray would take ~/.ray/auth"),
        (["--on", "slurm", "--sbatch", "high"], "--sbatch: 'high' is no option of sbatch; write"),
        (["--on", "slurm", "--sbatch=--"], "--sbatch: '--' is no option of sbatch; write it"),
        (["--on", "slurm", "--time", "soon"], "--time: 'soon'"),
        (["--on", "slurm", "--gpu-types", "a100,t4"], "--gpu-types: a100,t4 names 2 types"),
        (["--on", "slurm", "--host-memory", "much"], "--host-memory 'much' is not a size"),
        (["--queue", "vision"], "--queue: it is for nodes of Kubernetes; give --on kubernetes"),
        (["--manifest"], "--manifest: it is for nodes of Kubernetes; give --on kubernetes"),
        ([*ON_KUBERNETES[:2]], "--image: it is missing; give an image that has Rota"),
        ([*ON_KUBERNETES, "--name", "A_1"], "--name: 'A_1' is no name for pods; write at most 50"),
        ([*ON_KUBERNETES, "--volume", "data"], "--volume: 'data' is not of the form CLAIM:PATH"),
        ([*ON_KUBERNETES, "--volume", "a:/x:ro"], "--volume: 'a:/x:ro' is not of the form CLAIM"),
        ([*ON_KUBERNETES, "--volume", "a:/x/.."], "--volume: 'a:/x/..' takes the place of /x/.."),
        ([*ON_KUBERNETES, "--volume=a:/dev/shm/"], "--volume: 'a:/dev/shm/' takes the place of"),
        (
            [*ON_KUBERNETES, "--volume", "a:/x", "--volume", "b:/x/"],
            "--volume: 'b:/x/' is at the path of a; give each claim its own",
        ),
        ([*ON_KUBERNETES, "--queue", ""], "--queue: '' is no name in Kubernetes; write at most 63"),
        ([*ON_KUBERNETES, "--queue", "a/../b"], "--queue: 'a/../b' is no name in Kubernetes"),
        ([*ON_KUBERNETES, "--namespace", "a/../b"], "--namespace: 'a/../b' is no name in"),
        ([*ON_KUBERNETES, "--namespace", "a?b"], "--namespace: 'a?b' is no name in Kubernetes"),
        ([*ON_KUBERNETES, "--namespace", "a\nb"], "--namespace: 'a\\nb' is no name in Kubernetes"),
        ([*ON_KUBERNETES, "--grace", "soon"], "--grace: 'soon'"),
        ([*ON_KUBERNETES, "--pod-memory", "0"], "--pod-memory: '0' is no memory; write for"),
        ([*ON_KUBERNETES, "--pod-memory", "much"], "--pod-memory 'much' is not a size"),
        ([*ON_KUBERNETES, "--manifest"], "--namespace: it is missing; name the one that the"),
        (
            [*ON_KUBERNETES, "--manifest", "--namespace", "ml", "--name", "a" * 42],
            f"--name: '{'a' * 42}' has 42 characters, and the StatefulSet of a controller allows",
        ),
        (
            [*ON_KUBERNETES, "--manifest", "--namespace", "ml", "--port", "7000"],
            "--port: a controller that is a pod can't have it; leave it out",
        ),
        ([*ON_KUBERNETES], "--on kubernetes: "),
        (["--on", "slurm"], "--on slurm: sbatch: No such file or directory; run it where"),
    ],
)
def test_what_can_not_be_asked_of_an_engine_is_refused(words, message, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    with pytest.raises(InputError) as refused:
        up.main([*words, "--home", str(tmp_path / "home")], standalone_mode=False)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b": : {", "ParserError: while parsing"),
        (b"[]", "TypeError: "),
        (b"\xfe\xff\x00", "UnicodeDecodeError: "),
    ],
)
def test_a_kubeconfig_that_can_not_be_read_is_told(text, said, monkeypatch, tmp_path):
    pytest.importorskip("kubernetes")
    (tmp_path / "config").write_bytes(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(InputError) as refused:
        up.main([*ON_KUBERNETES, "--home", str(tmp_path / "home")], standalone_mode=False)
    told = f"--on kubernetes: the kubeconfig can't be read: {said}"
    assert str(refused.value).startswith(told)
    assert "set KUBECONFIG to the file of your cluster" in str(refused.value)


def test_a_manifest_has_the_options_of_its_call_and_rights_in_its_namespace_alone(capsys):
    words = ["--nodes", "1..8", "--gpus", "8", "--policy", "tiresias", "--set", "fill=on"]
    up.main(
        [*ON_KUBERNETES, *words, "--namespace", "ml", "--queue", "vision", "--manifest"],
        standalone_mode=False,
    )
    told = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert {each["metadata"]["namespace"] for each in told.values()} == {"ml"}
    assert told.keys() == {"ServiceAccount", "Role", "RoleBinding", "Service", "StatefulSet"}
    rights = {rule["resources"][0]: rule["verbs"] for rule in told["Role"]["rules"]}
    assert rights == {
        "pods": ["get", "list", "watch", "create", "delete"],
        "secrets": ["create", "delete"],
        "leases": ["get", "create", "update", "delete"],
        "localqueues": ["get"],
    }
    spec = told["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["rota", "up"]
    assert set(container["args"]) >= {
        "--name=rota",
        "--on=kubernetes",
        "--image=registry.lab/rota:1",
        "--nodes=1..8",
        "--gpus=8",
        "--policy=tiresias",
        "--set=fill=on",
        "--queue=vision",
        "--namespace=ml",
        "--home=/var/lib/rota",
    }
    assert not any(word.startswith("--manifest") for word in container["args"])
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
