"""A machine goes, and with it no state of a job that waits: another machine has it by then."""

from tests.process.conftest import until

PROGRAM = """
import hashlib, os, sys, time, torch, rota.train
torch.manual_seed(1)
gate = sys.argv[1]
with rota.train.session() as s:
    net = torch.nn.Linear(16, 16)
    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    for step in s.steps(8):
        loss = net(torch.full((4, 16), float(step))).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print(f"step {step} on", os.environ["ROTA_NODE"], flush=True)
        while step == 3 and not os.path.exists(gate):
            time.sleep(0.01)
        s.report()
    bits = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
    print("weights", hashlib.sha256(bits).hexdigest(), flush=True)
"""


def test_a_machine_is_drained_and_removed_and_its_suspended_job_ends_elsewhere(lab, base):
    client = lab.client
    machines = {name: lab.join(name, gpus=1) for name in ("left", "right")}
    (own,) = {node["name"] for node in client.nodes()} - machines.keys()
    client.cordon(own)
    (base / "train.py").write_text(PROGRAM)
    (base / "open").touch()

    def submit(run):
        job = client.submit({"run": run, "workdir": str(base)})["id"]
        until(lambda: client.job(job)["gpus"] or client.job(job)["finish_s"], "it starts")
        return job

    def lines(job, word):
        return [line for line in "".join(client.logs(job)).splitlines() if word in line]

    alone = submit("python train.py open")
    until(lambda: client.job(alone)["state"] == "SUCCEEDED", "it ends")
    job = submit("python train.py gate")
    source = client.job(job)["gpus"][0]["node"]
    (target,) = machines.keys() - {source}
    until(lambda: len(lines(job, "step")) == 4, "it waits at its gate")
    filler = submit("sleep 1000")
    assert client.job(filler)["gpus"][0]["node"] == target

    client.drain(source)
    until(lambda: client.job(job)["state"] == "SUSPENDING", "it is asked to hold")
    code, text = lab.head.rota("node", "remove", source)
    assert (code, f"node {source} has job {job}" in text) == (1, True)
    (base / "gate").touch()
    until(lambda: lab.node(source)["closed"] == "drained", machines[target].log)
    show = client.job(job)
    assert (show["state"], show["state_on"], show["attempt"]) == ("SUSPENDED", target, 1)
    assert lab.head.rota("node", "remove", source)[0] == 0
    assert machines[source].exit_code() == 5

    client.cancel(filler)
    until(lambda: client.job(job)["state"] == "SUCCEEDED", "it ends")
    show = client.job(job)
    assert (show["attempt"], show["migrations"]) == (1, 1)
    assert lines(job, "step") == [f"step {n} on {source if n < 4 else target}" for n in range(8)]
    assert lines(job, "weights") == lines(alone, "weights") != []
