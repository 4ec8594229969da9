"""What suspension and resumption cost, by the size of the model.

    python bench/suspend.py [--millions 1 25 100] [--times 15]

For each size a training is suspended and resumed through a live cluster. Printed as median with
minimum and maximum, in milliseconds: from the step boundary until the device was confirmed free,
and from the resume command until the job ran. On a GPU the state is copied to host memory and back
in that time, and the rate is printed beside; on a CPU it stays where it is. The first suspension,
which makes the host memory, is listed by itself.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from rota.client.client import Client
from rota.demo.cluster import private_cluster, read_run
from rota.folder import Folder

SCRIPT = """
import math, sys, torch, rota.train
torch.set_num_threads(1)
width = int(math.sqrt(float(sys.argv[1]) * 1e6 / 4))
with rota.train.session() as s:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    model, optimizer = s.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in s.steps():
        loss = model(torch.randn(8, width, device=s.device)).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=8)
"""
COPIES = 4  # parameters, gradients, and AdamW's two moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 25, 100])
    parser.add_argument("--times", type=int, default=15)
    options = parser.parse_args()
    print(f"{'parameters':>12}{'state':>10}{'first':>10}{'suspend ms (min, max)':>30}", end="")
    print(f"{'resume ms (min, max)':>30}{'GB/s':>14}")
    for millions in options.millions:
        with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder:
            measure(Path(folder), millions, options.times)


def measure(folder: Path, millions: float, times: int) -> None:
    (folder / "train.py").write_text(SCRIPT)
    home = folder / "home"
    with private_cluster(home, "fifo", {}, 1) as client:
        on_gpu = client.nodes()[0]["kind"] == "cuda"
        run = f"python train.py {millions}"
        job = client.submit({"run": run, "workdir": str(folder)})["id"]
        for _ in range(times + 1):
            wait_for(client, job, "RUNNING", steps=2)
            client.suspend(job)
            wait_for(client, job, "SUSPENDED")
            client.resume(job)
        client.cancel(job)
        client.wait(job)
    switches = read_run(Folder(home), [job]).timeline.switches[0]
    first, *suspend_s = switches.suspend_s
    resume_s = switches.resume_s[1:]
    state_gb = millions * 1e6 * 4 * COPIES / 1e9
    rates = f"{state_gb / median(suspend_s):.1f}, {state_gb / median(resume_s):.1f}"
    print(
        f"{millions:>10g} M{state_gb:>7.2f} GB{1e3 * first:>10.1f}{spread(suspend_s):>30}"
        f"{spread(resume_s):>30}{rates if on_gpu else '-':>14}"
    )


def wait_for(client: Client, job: str, state: str, steps: int = 0) -> None:
    """Wait for a state, and in it for so many more steps than were reported before."""
    goal = None
    while True:
        now = client.job(job)
        if now["state"] == "FAILED":
            raise SystemExit("".join(client.logs(job)))
        if now["state"] == state:
            step = now["progress"].get("step") or 0
            goal = step + steps if goal is None else goal
            if step >= goal:
                return
        time.sleep(0.01)


def spread(seconds: list[float]) -> str:
    """Median, minimum and maximum in milliseconds."""
    values = [1e3 * value for value in seconds]
    return f"{median(values):.1f} ({min(values):.1f}, {max(values):.1f})"


if __name__ == "__main__":
    main()
