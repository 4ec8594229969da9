"""What jobs inherit of their agent's environment."""

import pytest

from rota.live.agent.inherited import RULES, inherited

LAUNCHERS = {
    "srun": {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_NODELIST": "x"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "1", "PMIX_RANK": "0"},
    "prterun": {"PRTE_LAUNCHED": "1", "OMPI_MCA_orte_ess_vpid": "0", "OMPI_MCA_ess": "^singleton"},
    "mpiexec": {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "HYDI_CONTROL_FD": "7"},
    "mvapich": {"MV2_COMM_WORLD_LOCAL_RANK": "0"},
    "cray": {"PALS_RANKID": "0", "ALPS_APP_PE": "0"},
    "jsrun": {"JSM_NAMESPACE_RANK": "0", "LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "f"},
    "flux": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
    "qsub": {"PBS_JOBID": "1", "PBS_NODEFILE": "f", "COBALT_JOBID": "1"},
    "grid engine": {"SGE_TASK_ID": "1", "NSLOTS": "4", "PE_HOSTFILE": "f", "JOB_ID": "1"},
    "torchrun": {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_WORLD_SIZE": "1",
        "MASTER_ADDR": "elsewhere",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "WORLD_SIZE": "1",
        "PET_NNODES": "1",
        "NODE_RANK": "0",
    },
    "horovodrun": {"HOROVOD_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"},
    "a pod": {"KUBERNETES_PORT": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP_ADDR": "10.0.0.1"},
    "ray": {"RAY_RAYLET_PID": "1", "RAY_ADDRESS": "auto", "RAY_JOB_ID": "01000000"},
    "rota": {"ROTA_JOB_ID": "1", "ROTA_MASTER_PORT": "1"},
}
OF_THE_MACHINE = {
    "PATH": "/bin",
    "HOME": "/root",
    "LANG": "C",
    "LS_COLORS": "x",
    "CUDA_VISIBLE_DEVICES": "0",
    "SLURM_CONF": "/etc/slurm",
    "LSF_ENVDIR": "/lsf",
    "SGE_ROOT": "/sge",
    "MPI_HOME": "/mpi",
    "OMPI_MCA_btl": "^openib",
    "OMPI_CC": "gcc",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "2",
    "RAY_ADDRESS": "head:6379",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_ID": "mine",
    "RANKING": "1",
    "MASTER": "1",
    "TORCH_HOME": "/t",
    "PETS": "2",
    "HOROVOD_FUSION": "1",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_launcher_told_the_agent_does_not_reach_jobs(launcher):
    assert inherited(LAUNCHERS[launcher]) == {}
    hidden = LAUNCHERS[launcher].keys()
    beside = {key: value for key, value in OF_THE_MACHINE.items() if key not in hidden}
    kept = inherited(beside | LAUNCHERS[launcher])
    assert kept.keys() >= beside.keys() - {"RAY_ADDRESS", "JOB_ID"}
    assert not kept.keys() & hidden


def test_what_is_set_for_the_machine_reaches_jobs():
    assert inherited(OF_THE_MACHINE) == OF_THE_MACHINE


def test_no_name_has_two_rules_but_where_one_needs_another_variable():
    names = [name for rule in RULES if not rule.only_with for name in rule.names]
    assert len(names) == len(set(names))
    assert all(name.count("*") == name.endswith("*") for rule in RULES for name in rule.names)
