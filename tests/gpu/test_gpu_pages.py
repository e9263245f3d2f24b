"""What users read and type, with GPUs visible: pages as written, the doctor, a recipe. Elsewhere the CPU runs it."""

import ctypes
import json
import re

import mxkit
from pages import run_commands, run_page
import pytest
from test_docs import COOKBOOK, name_of
from test_readme import test_bash_blocks as test_commands_of_the_readme  # noqa: F401
from test_readme import test_both_sides_of_the_diff_end_with_the_same_weights as test_diff_of_the_readme  # noqa: F401
from test_readme import test_python_blocks as test_python_of_the_readme  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_pass("default"), pytest.mark.usefixtures("gpus")]


@pytest.mark.parametrize("page", COOKBOOK, ids=name_of)
def test_a_page_of_the_cookbook_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


def test_the_doctor_finds_the_gpus(gpus, tmp_path, told):
    cudnn = ctypes.CDLL("libcudnn.so.8")
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    told(f"cuDNN {cudnn.cudnnGetVersion()}, {len(gpus)} usable GPU(s)")
    report = json.loads(run_commands("mxkit doctor --json", tmp_path))
    assert report["problems"] == 0
    usable = [line["data"]["index"] for line in report["sections"]["gpu"] if line["data"].get("usable")]
    assert usable == [device.device_id for device in gpus] == [one.device_id for one in mxkit.devices("auto")]


def test_digits_lenet_reaches_its_accuracy(tmp_path, told):
    printed = run_commands("mxkit train digits_lenet", tmp_path)
    accuracy = re.search(r"^test accuracy ([\d.]+)$", printed, re.MULTILINE)[1]
    told(f"digits_lenet: test accuracy {accuracy}")
    assert float(accuracy) >= 0.98
