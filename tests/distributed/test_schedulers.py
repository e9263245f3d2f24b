"""A worker's place, from variables that real schedulers set; .ci/schedulers runs the real ones."""

import os
import socket
import subprocess
import sys

from mxkit.distributed.schedulers import PORT, first_host, place_of, variables_of
from mxkit.distributed.side_processes import listen, own_address
from mxkit.errors import DistributedError
import pytest


def recorded(words):
    """Variables as `env` prints them."""
    return dict(word.split("=", 1) for word in words.split())


# Recorded from real ones, without what nobody reads: SLURM 22.05.8, Open MPI 4.1.4 and 5.0.11, MPICH 4.0.2 and 5.0.2,
# Intel MPI 2021.18.1, torchrun of PyTorch 2.13.
STEP = recorded(
    "SLURM_JOB_ID=2 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_NTASKS=4 "
    "SLURM_STEP_NODELIST=node[1-2] SLURM_JOB_NODELIST=node[1-2]"
)
ONE_NODE = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node2", "SLURM_STEP_ID": "1"}
BATCH = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "node[1-2]"}
SALLOC = {"SLURM_JOB_ID": "6", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_JOB_NODELIST": "node[1-2]"}
HETEROGENEOUS = {**STEP, "SLURM_JOB_ID": "8", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}
del HETEROGENEOUS["SLURM_STEP_NUM_NODES"]
PMI2 = {**STEP, "PMI_JOBID": "4.0", "PMI_RANK": "3", "PMI_SIZE": "4"}
OPEN_MPI_4 = recorded(
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=948895745 "
    "OMPI_MCA_orte_precondition_transports=6a5ae66afa926172-d5aa9699e32d1ec2"
)
HOROVODRUN = recorded("HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_SIZE=2 HOROVOD_GLOO_RENDEZVOUS_PORT=31417")
OPEN_MPI_5 = {**OPEN_MPI_4, "PMIX_NAMESPACE": "prterun-vm-26197@1"}
del OPEN_MPI_5["OMPI_MCA_orte_precondition_transports"]
MPICH = {"MPI_LOCALNRANKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}
INTEL = {**MPICH, "I_MPI_HYDRA_UUID": "7a660000-a154-da57-f560-0600ad192d04"}
# One step of SLURM for each machine, whose process started two workers.
PER_NODE = {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "node2"}
OPEN_MPI_IN_SLURM = {**PER_NODE, **OPEN_MPI_4, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
MPICH_IN_SLURM = {**PER_NODE, **MPICH, "PMI_RANK": "3", "PMI_SIZE": "4"}
TORCHRUN = recorded("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500")
TORCHRUN["TORCHELASTIC_RUN_ID"] = "none"
TORCHRUN_IN_SLURM = {**PER_NODE, **TORCHRUN, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1"}
KUBEFLOW = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3", "MXKIT_SIZE": "4", "MXKIT_ADDRESS": "train-0.train:29400"}

PLACES = {
    "srun": (STEP, ("SLURM", 3, 4, "node1")),
    "srun on one node": (ONE_NODE, ("SLURM", 3, 4, "127.0.0.1")),
    "srun --het-group": (HETEROGENEOUS, ("SLURM", 2, 3, "node1")),
    "srun --mpi=pmi2": (PMI2, ("SLURM", 3, 4, "node1")),
    "Open MPI 4": (OPEN_MPI_4, ("Open MPI", 1, 2, "127.0.0.1")),
    "Open MPI 5": (OPEN_MPI_5, ("Open MPI", 1, 2, "127.0.0.1")),
    "MPICH": (MPICH, ("MPI (PMI)", 1, 2, "127.0.0.1")),
    "Intel MPI": (INTEL, ("MPI (PMI)", 1, 2, "127.0.0.1")),
    "mpirun in SLURM": (OPEN_MPI_IN_SLURM, ("Open MPI", 3, 4, "node1")),
    "mpiexec in SLURM": (MPICH_IN_SLURM, ("MPI (PMI)", 3, 4, "node1")),
    "horovodrun": (HOROVODRUN, ("horovodrun", 1, 2, "127.0.0.1")),
    "horovodrun in SLURM": ({**STEP, **HOROVODRUN}, ("horovodrun", 1, 2, "127.0.0.1")),
    "torchrun": (TORCHRUN, ("torchrun", 1, 2, "127.0.0.1")),
    "srun torchrun": (TORCHRUN_IN_SLURM, ("torchrun", 3, 4, "node1")),
    "RANK": (KUBEFLOW, ("the variables RANK and WORLD_SIZE", 1, 2, "job-master-0")),
    "Kubernetes": (KUBERNETES, ("Kubernetes", 3, 4, "train-0.train")),
    "mxkit in all": ({**OPEN_MPI_IN_SLURM, "MXKIT_RANK": "0", **KUBERNETES}, ("mxkit", 0, 4, "train-0.train")),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_by_the_variables_of_a_scheduler(case):
    variables, expected = PLACES[case]
    place = place_of(variables)
    assert (place.scheduler, place.rank, place.size, place.host) == expected


ALONE = {
    "nothing": {},
    "the script of sbatch": BATCH,
    "the shell of salloc": SALLOC,
    "srun --pty bash": {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    "an indexed Job of single pods": {"JOB_COMPLETION_INDEX": "3"},
}


def test_a_process_that_is_alone():
    assert {name: place_of(variables) for name, variables in ALONE.items()} == dict.fromkeys(ALONE)


def test_two_jobs_on_one_machine_have_two_ports_and_secrets():
    jobs = [STEP, INTEL, OPEN_MPI_4, OPEN_MPI_5, TORCHRUN]
    jobs += [{**STEP, "SLURM_STEP_ID": "1"}, {**STEP, "SLURM_JOB_ID": "20"}]
    jobs += [{**TORCHRUN, "MASTER_PORT": "29501"}, {**OPEN_MPI_4, "OMPI_MCA_orte_precondition_transports": "1-2"}]
    places = [place_of(variables) for variables in jobs]
    assert len({place.port for place in places}) == len({place.secret for place in places}) == len(jobs)
    assert all(20000 <= place.port < 30000 and len(place.secret) == 64 for place in places)
    assert place_of({**STEP, "MXKIT_SECRET": "ours"}).secret == "ours"


def test_workers_of_a_job_agree_on_where_they_meet_and_stated_ports_and_servers_win():
    first = {**OPEN_MPI_IN_SLURM, "OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}
    assert place_of(first)[1:] == place_of(OPEN_MPI_IN_SLURM)[1:]
    assert place_of({**MPICH_IN_SLURM, "SLURM_STEP_ID": "7"}) == place_of(MPICH_IN_SLURM)
    assert place_of({**STEP, "MXKIT_ADDRESS": "10.0.0.1:1234"})[2:4] == ("10.0.0.1", 1234)
    assert place_of({**STEP, "MXKIT_ADDRESS": "n1"})[2:4] == ("n1", place_of(STEP).port)
    assert place_of({"MXKIT_RANK": "0", "MXKIT_SIZE": "2", "MXKIT_ADDRESS": "n1"}).port == PORT
    assert place_of(KUBEFLOW).port == 23456
    assert place_of(TORCHRUN_IN_SLURM).port != 29500, "torchrun itself listens there"
    places = [place_of({**STEP, "MXKIT_SERVERS": stated}) for stated in ("3", "each")]
    assert [(place.servers, place.spread) for place in places] == [(3, False), (4, True)]
    assert [variables_of(place)["MXKIT_SERVERS"] for place in places] == ["3", "each"]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI started 4 workers on several machines.*MXKIT_ADDRESS="),
        ({**MPICH, "MPI_LOCALNRANKS": "1"}, "MPI .PMI. started 2 workers on several machines.*MXKIT_ADDRESS="),
        ({"MXKIT_RANK": "0", "MXKIT_SIZE": "2"}, "mxkit started 2 workers on several machines"),
        ({"MXKIT_SIZE": "4"}, "MXKIT_SIZE is set, but not the rank"),
        ({"MXKIT_ADDRESS": "n1:1"}, "MXKIT_ADDRESS is set, but not the rank"),
        ({**STEP, "SLURM_PROCID": "4"}, "SLURM_PROCID=4: expected a rank from 0 to 3, because SLURM_STEP_NUM_TASKS=4"),
        ({**STEP, "SLURM_PROCID": "x"}, "SLURM_PROCID='x': expected a whole number"),
        ({**KUBEFLOW, "MASTER_PORT": "x"}, "MASTER_PORT='x': expected a whole number"),
        ({**STEP, "MXKIT_ADDRESS": "n1:99999"}, "MXKIT_ADDRESS='n1:99999': expected HOST:PORT"),
        ({**STEP, "MXKIT_SERVERS": "0"}, "MXKIT_SERVERS='0': expected a number of at least 1, or each"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, "DMLC_ROLE=worker is set: MXNet's own launcher or Kubeflow"),
    ],
)
def test_variables_that_are_refused(variables, text):
    with pytest.raises(DistributedError, match=text):
        place_of(variables)


NODES = {"n1": "n1", "n1,n2": "n1", "n[3,7-9],m1": "n3", "r[1-2]n[01-09]x,z": "r1n01x", "a-b.c[10]": "a-b.c10"}


def test_the_first_host_of_a_list_of_slurm():
    assert {nodes: first_host(nodes) for nodes in NODES} == NODES


def test_a_name_that_leads_to_loopback_is_heard_at_all_addresses(monkeypatch):
    assert own_address("127.0.0.1") == own_address("localhost") == ("127.0.0.1", "127.0.0.1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")  # as /etc/hosts of Debian has it
    own, named = own_address("node1")
    assert named == "127.0.1.1"
    with listen("node1") as listener:
        assert listener.getsockname()[0] == ("0.0.0.0" if own != named else named)


def run_with_role(role, code):
    variables = {**os.environ, "DMLC_ROLE": role, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    return done.stderr.strip().splitlines()


def test_a_role_of_mxnets_own_launchers_is_named_before_the_import_serves():
    said = run_with_role("server", "import mxkit.distributed\nmxkit.distributed.initialize()")
    assert said[-1].startswith("mxkit.errors.DistributedError: DMLC_ROLE=server is set: `import mxnet` makes")
    assert "mxkit starts MXNet's scheduler and servers itself" in said[-1]
    # without the other variables MXNet ends with an error where it would serve
    said = run_with_role("scheduler", "import mxkit, mxnet")
    assert any("TrapWarning: DMLC_ROLE=scheduler is set: `import mxnet` makes this process" in line for line in said)


def test_mpich_processes_of_one_launcher_meet_at_one_port_and_those_of_another_do_not():
    launcher = """
import subprocess, sys
code = "import os; from mxkit.distributed.schedulers import place_of; print(place_of(os.environ).port)"
for rank in "01":
    # a shell between the launcher and the worker, which `true` keeps there
    subprocess.run(["env", "PMI_RANK=" + rank, "sh", "-c", '"$0" -c "$1"; true', sys.executable, code])
"""
    variables = {**os.environ, **MPICH, "PYTHONPATH": os.pathsep.join(sys.path)}
    del variables["PMI_RANK"]
    command = [sys.executable, "-c", launcher]
    ports = [subprocess.check_output(command, env=variables, text=True).split() for _ in range(2)]
    assert [len(one) for one in ports] == [2, 2]
    assert [len(set(one)) for one in ports] == [1, 1]
    assert len({*ports[0], *ports[1]}) == 2
