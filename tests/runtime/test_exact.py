"""MXKIT_EXACT=1: what it sets, when it is read, and what is recorded of a GPU."""

from mxkit.errors import MXNetImportError, TrapWarning
from mxkit.runtime import engine_settings, gpus
from mxkit.runtime.gpus import Driver, Gpu
import pytest

EXACT = {
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    "MXNET_ENFORCE_DETERMINISM": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "NVIDIA_TF32_OVERRIDE": "0",
}


@pytest.mark.parametrize("word", [{}, {"MXKIT_EXACT": ""}, {"MXKIT_EXACT": "0"}])
def test_without_the_word_nothing_is_set(word):
    environment = {**word, "MXNET_ENFORCE_DETERMINISM": "true", "NVIDIA_TF32_OVERRIDE": "1"}
    before = dict(environment)
    engine_settings.set_switches(environment)
    assert environment == before
    assert engine_settings.switches() == {
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "not set",
        "MXNET_ENFORCE_DETERMINISM": "true",
        "CUBLAS_WORKSPACE_CONFIG": "not set",
        "NVIDIA_TF32_OVERRIDE": "1",
    }
    assert engine_settings.switches_off() == {
        name: EXACT[name] for name in EXACT if name != "MXNET_ENFORCE_DETERMINISM"
    }


def test_the_word_sets_all_of_it():
    environment = {"MXKIT_EXACT": "1", "NVIDIA_TF32_OVERRIDE": "1"}
    with pytest.warns(TrapWarning, match=r"^MXKIT_EXACT=1 sets NVIDIA_TF32_OVERRIDE=0; it was 1$"):
        engine_settings.set_switches(environment)
    assert environment == {"MXKIT_EXACT": "1", **EXACT}
    environment["MXNET_ENFORCE_DETERMINISM"] = "0"  # too late to count
    assert engine_settings.switches() == EXACT
    assert engine_settings.switches_off() == {}


def test_another_word_is_refused():
    with pytest.raises(MXNetImportError, match="^MXKIT_EXACT: expected 1 or 0; received 'yes'$"):
        engine_settings.set_switches({"MXKIT_EXACT": "yes"})


def test_a_word_that_comes_too_late_is_told():
    engine_settings.set_switches({})
    engine_settings.warn_if_late({})  # warnings are errors here
    with pytest.warns(TrapWarning, match="^MXKIT_EXACT=1 does nothing: .* Set it before the program starts$"):
        engine_settings.warn_if_late({"MXKIT_EXACT": "1"})
    engine_settings.set_switches({"MXKIT_EXACT": "1"})
    engine_settings.warn_if_late({"MXKIT_EXACT": "1"})


def test_what_the_bits_of_a_gpu_depend_on(monkeypatch, tmp_path):
    two = tuple(Gpu(number, name, (8, 0), 2**30, "") for number, name in enumerate(["NVIDIA A100", "NVIDIA L4"]))
    monkeypatch.setattr(gpus, "read_driver", lambda: Driver((12, 2), two))
    monkeypatch.setattr(gpus, "cudnn_version", lambda: "8.9.6")
    monkeypatch.setattr(engine_settings, "_switches_loaded", {})
    file = tmp_path / "version"
    file.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"
    )
    monkeypatch.setattr(gpus, "_MODULE", file)
    assert gpus.gpu_facts([1, 0]) == {
        "GPUs": "NVIDIA L4, NVIDIA A100",
        "NVIDIA driver": "535.129.03",
        "cuDNN": "8.9.6",
        **dict.fromkeys(EXACT, "not set"),
    }
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n")
    assert gpus.driver_release() == "550.54.15"
    monkeypatch.setattr(gpus, "_MODULE", tmp_path / "none")
    assert gpus.driver_release() == ""
