"""`rota sim` on measured profiles, made here."""

import json

import pytest

WORKLOAD = """name,time,application,num_replicas,batch_size
a,7,cifar10,1,128
b,8,cifar10,1,128
"""


@pytest.fixture
def files(tmp_path):
    """The path of a workload of two jobs, and of a folder with a profile of what they train."""
    workload, toy = tmp_path / "workload.csv", tmp_path / "profiles" / "cifar10"
    workload.write_text(WORKLOAD)
    toy.mkdir(parents=True)
    steps = "".join(f"1,{size},{size / 64},0\n" for size in (32, 64, 128))
    (toy / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n" + steps)
    epochs = "10,10,0.5,1,1\n20,20,0.6,1,1\n"
    text = f"progress,iteration,metric,grad_sqr,grad_var\n{epochs}"
    (toy / "validation-128.csv").write_text(text)
    return workload, tmp_path / "profiles"


def test_jobs_train_as_their_profile_says_and_start_at_the_interval(rota, files):
    workload, profiles = files
    options = ["--cluster", "1x1", "--interval", 60, "--restart-s", 30, "--history", "--json"]
    code, out, _ = rota(
        *("sim", "run", "--trace", workload, "--profiles", profiles, "--policy", "fifo"), *options
    )
    told = json.loads(out)
    # 20 steps of 2 s: from 60 + 30 to 130, and from 180 + 30 to 250 s.
    assert code == 0
    assert told["avg_jct_s"] == (130 - 7 + 250 - 8) / 2
    assert (told["speeds"], told["profiles"]) == ("profiles", str(profiles))
    assert (told["interval_s"], told["overheads"]["resume_s"]) == (60.0, 30.0)


def test_a_profile_that_is_not_there_is_told(rota, files):
    workload, profiles = files
    options = ["--cluster", "1x1", "--policy", "fifo", "--profiles", profiles / "cifar10"]
    code, _, err = rota("sim", "run", "--trace", workload, *options)
    assert code == 2
    assert "no profile of application 'cifar10'; it has none" in err


def test_a_job_without_a_model_has_no_profile(rota, files, tmp_path):
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,duration_s,num_gpus\na,0,60,1\n")
    options = ["--cluster", "1x1", "--policy", "fifo", "--profiles", files[1]]
    code, _, err = rota("sim", "run", "--trace", tmp_path / "jobs.csv", *options)
    assert code == 2
    assert "a job names no model" in err
    assert "cifar10" in err


@pytest.mark.parametrize("policy", ["pollux", "optimus", "optimus-oracle"])
def test_who_chooses_by_profiles_is_told_that_there_are_none(rota, files, policy):
    workload, profiles = files
    options = ["--trace", workload, "--cluster", "1x1", "--policy", policy]
    said = f"{policy}: nothing is known of what GPUs and batches bring"
    code, _, err = rota("sim", "run", *options)
    assert code == 0
    assert said in err
    assert said in rota("sim", "compare", *options, "--policy", "fifo")[2]
    assert said not in rota("sim", "run", *options, "--profiles", profiles)[2]


def test_who_has_several_types_and_a_trace_that_names_no_speeds_is_told(rota, files, tmp_path):
    workload, profiles = files
    two_types = ("--cluster", "1x1:t4,1x1:a100", "--policy", "fifo", "--profiles", profiles)
    said = "2 of 2 jobs name no speed on t4 or a100 GPUs, and run alike on all"
    code, _, err = rota("sim", "run", "--trace", workload, *two_types)
    assert code == 0
    assert said in err
    assert said in rota("sim", "compare", "--trace", workload, *two_types)[2]
    one_type = ("--cluster", "2x1:a100", *two_types[2:])
    assert "name no speed" not in rota("sim", "run", "--trace", workload, *one_type)[2]
    header = "job_id,submit_s,duration_s,num_gpus,model,batch,speeds"
    rows = "a,7,9,1,cifar10,128,a100=4\nb,8,9,1,cifar10,128,A100=4"
    (tmp_path / "jobs.csv").write_text(f"{header}\n{rows}\n")
    err = rota("sim", "run", "--trace", tmp_path / "jobs.csv", *two_types)[2]
    assert "1 of 2 jobs name no speed on t4 or a100 GPUs" in err


@pytest.mark.parametrize("seconds", ["0", "-60", "nan"])
def test_an_interval_that_can_not_be_is_refused(rota, files, seconds):
    options = ["--cluster", "1x1", "--policy", "fifo", "--interval", seconds]
    code, _, err = rota("sim", "run", "--trace", files[0], *options)
    assert code == 2
    assert "--interval" in err


def test_what_a_policy_can_not_reckon_with_is_told_after_the_run(rota, files):
    workload, profiles = files
    absurd = "progress,iteration,metric,grad_sqr,grad_var\n10,10,0.5,1,1e200\n20,20,0.6,1,1e200\n"
    (profiles / "cifar10" / "validation-128.csv").write_text(absurd)
    options = ["--cluster", "1x1", "--restart-s", 5, "--json", "--profiles", profiles]
    code, out, err = rota("sim", "run", "--trace", workload, "--policy", "pollux", *options)
    assert code == 0
    assert json.loads(out)["policy"] == "pollux"
    assert "warning: job b: gradient noise left out" in err
