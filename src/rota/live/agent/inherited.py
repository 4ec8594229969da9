"""Variables that jobs inherit from the agent's environment, and those that they don't.

An agent may itself be part of somebody else's job: started by Slurm, mpirun, torchrun or Ray, or by
`rota up` in a shell that was. Such a launcher tells its own processes their rank, how many they are
and where they meet. For a job of Rota that is wrong, and libraries believe it before anything else:
under Slurm's variables each rank of a gang takes itself for rank 0 of 1. The variables of a job's
own ``env`` reach the job all the same.
"""

from collections.abc import Mapping
from typing import NamedTuple


class VariableRule(NamedTuple):
    """A rule for variables with these names; ``*`` stands for any end.

    ``only_with``: only where one of these is set as well, since the names say little by themselves.
    """

    names: tuple[str, ...]
    reaches_jobs: bool
    why: str
    only_with: tuple[str, ...] = ()


# The longest name that matches a variable counts; variables that none matches reach jobs.
RULES = (
    VariableRule(("ROTA_*",), False, "of the agent, or of the job that has started `rota up`"),
    VariableRule(
        ("SLURM_*", "SLURMD_*", "SRUN_*", "SBATCH_*", "SALLOC_*"),
        False,
        "of a job or step of Slurm, and options of its commands",
    ),
    VariableRule(
        ("SLURM_CONF",), True, "where Slurm is configured on the machine, for its commands"
    ),
    VariableRule(
        ("PMI_*", "PMI2_*", "PMIX_*", "HYDI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        False,
        "of a process of MPI: its rank, and how it meets the others",
    ),
    VariableRule(("OMPI_*", "PRTE_*", "MV2_COMM_WORLD_*", "MVP_COMM_WORLD_*"), False, "of mpirun"),
    VariableRule(
        (
            *("OMPI_MCA_*", "OMPI_CC", "OMPI_CXX", "OMPI_FC", "OMPI_LIBS", "OMPI_LDFLAGS"),
            *("OMPI_CPPFLAGS", "OMPI_CFLAGS", "OMPI_CXXFLAGS", "OMPI_FCFLAGS"),
        ),
        True,
        "settings of Open MPI, and of its compilers",
    ),
    VariableRule(
        ("OMPI_MCA_orte_*", "OMPI_MCA_ess*", "OMPI_MCA_pmix*", "OMPI_MCA_initial_wdir"),
        False,
        "how the processes of mpirun find it",
    ),
    VariableRule(("PALS_*", "ALPS_*"), False, "of Cray's launchers"),
    VariableRule(("JSM_*",), False, "of jsrun"),
    VariableRule(("FLUX_*",), False, "of Flux"),
    VariableRule(("LSB_*", "LSF_*", "LS_JOBPID", "LS_SUBCWD"), False, "of a job of LSF"),
    VariableRule(
        ("LSF_ENVDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_SERVERDIR"),
        True,
        "where LSF is on the machine, for its commands",
    ),
    VariableRule(("PBS_*", "COBALT_*", "OAR_*"), False, "of a job of PBS, Cobalt or OAR"),
    VariableRule(
        ("PBS_CONF_FILE", "PBS_EXEC"), True, "where PBS is on the machine, for its commands"
    ),
    VariableRule(
        ("SGE_*", "NSLOTS", "NHOSTS", "NQUEUES", "PE_HOSTFILE"),
        False,
        "of a job of Grid Engine",
    ),
    VariableRule(
        ("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
        True,
        "where Grid Engine is on the machine, for its commands",
    ),
    VariableRule(
        ("JOB_ID", "JOB_NAME", "JOB_SCRIPT", "QUEUE", "PE", "REQUEST", "RESTARTED", "TASK_ID"),
        False,
        "of a job of Grid Engine",
        only_with=("PE_HOSTFILE", "SGE_TASK_ID", "SGE_JOB_SPOOL_DIR"),
    ),
    VariableRule(("_CONDOR_*",), False, "of a job of HTCondor"),
    VariableRule(("AWS_BATCH_*",), False, "of a job of AWS Batch"),
    VariableRule(
        (
            *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
            *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
            *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "PET_*"),
        ),
        False,
        "of torchrun, and of who starts ranks as it does",
    ),
    VariableRule(
        (
            *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*"),
            *("HOROVOD_GLOO_*", "HOROVOD_HOSTNAME", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
        ),
        False,
        "of horovodrun and of DeepSpeed's launcher",
    ),
    VariableRule(("LT_*",), False, "of `fabric run`"),
    VariableRule(
        ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "TF_CONFIG", "DMLC_*"),
        False,
        "of a cluster of JAX, TensorFlow or MXNet",
    ),
    VariableRule(
        ("KUBERNETES_PORT", "KUBERNETES_PORT_*", "JOB_COMPLETION_INDEX"),
        False,
        "of a pod, which programs take for the rank of an operator's job",
    ),
    VariableRule(
        ("RAY_*",),
        False,
        "of a task, actor or job of Ray: `ray.init()` would wait for GPUs that Rota has",
        only_with=("RAY_RAYLET_PID", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR"),
    ),
)


_BY_NAME = sorted(
    ((name.removesuffix("*"), name.endswith("*"), rule) for rule in RULES for name in rule.names),
    key=lambda each: -len(each[0]),
)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an agent's environment that jobs inherit."""
    rules = [
        (text, is_beginning, rule.reaches_jobs)
        for text, is_beginning, rule in _BY_NAME
        if not rule.only_with or any(each in environment for each in rule.only_with)
    ]

    def reaches_jobs(key: str) -> bool:
        for text, is_beginning, reaches in rules:
            if key.startswith(text) if is_beginning else key == text:
                return reaches
        return True

    return {key: value for key, value in environment.items() if reaches_jobs(key)}
