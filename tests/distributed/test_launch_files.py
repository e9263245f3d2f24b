"""The scripts of docs/several-machines.md are whole, and say what mxkit reads."""

from pathlib import Path
import re
import subprocess
import sys

import mxkit
from mxkit.distributed.schedulers import place_of
import pytest
import yaml

DOCS = Path(mxkit.__file__).parents[1] / "docs"
SCRIPTS = sorted((DOCS / "launch").glob("*.sh"))
PAGE = (DOCS / "several-machines.md").read_text(encoding="utf-8")


def test_every_file_is_linked_from_the_page():
    linked = set(re.findall(r"\]\(launch/([\w.]+)\)", PAGE))
    assert linked == {path.name for path in (DOCS / "launch").iterdir()}


@pytest.mark.long
def test_mxnets_own_dist_async_runs_under_the_launcher():
    command = [sys.executable, "-m", "mxkit", "launch", "-n", "2", "--", sys.executable, DOCS / "launch/dist_async.py"]
    output = subprocess.check_output(command, text=True, timeout=120)
    scores = re.findall(r"worker ([01]): accuracy ([\d.]+)", output)
    assert sorted(rank for rank, _ in scores) == ["0", "1"]
    # chance decides the order of the updates: the page has 0.84 to 0.92 of three runs; an untrained net has 0.1
    assert all(float(score) > 0.7 for _, score in scores)


def test_scripts_are_of_bash():
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_script_of_mpi_tells_all_processes_where_they_meet(tmp_path):
    program = tmp_path / "mpirun"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" || echo "$MXKIT_ADDRESS" "$@"\n'
    )
    program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOSTS": "node1,node2"}
    command = ["bash", str(DOCS / "launch" / "mpi.sh"), "4", "python", "train.py"]
    words = subprocess.check_output(command, env=variables, text=True).split()
    assert words[0] == "node1"
    assert words[words.index("-x") + 1] == "MXKIT_ADDRESS"
    assert words[-2:] == ["python", "train.py"]
    assert "--bind-to none" in " ".join(words)


def test_the_pods_of_kubernetes_find_worker_0():
    service, job = yaml.safe_load_all((DOCS / "launch" / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec = job["spec"]
    pod = spec["template"]["spec"]
    variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}
    workers = spec["completions"]
    place = place_of({**variables, "JOB_COMPLETION_INDEX": str(workers - 1)})
    assert (place.rank, place.size) == (workers - 1, workers)
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == workers
    # a pod's name in the headless service is JOB-INDEX.SUBDOMAIN
    assert place.host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["containers"][0]["command"] == ["python", "train.py"]
