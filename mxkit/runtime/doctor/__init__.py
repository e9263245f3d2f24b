"""What MXNet finds here, and what to type where something is wrong; `mxkit doctor` prints it.

Nothing here raises because of what it looks at, and MXNet is imported in a process of its own: an MXNet that ends
the process which imports it is a line of the report.
"""

from concurrent.futures import ThreadPoolExecutor

from mxkit.runtime.doctor.accelerators import accelerator_lines, installed_kernels
from mxkit.runtime.doctor.findings import Line, Report, Section, render, rows, to_dict, to_json
from mxkit.runtime.doctor.mxnet_build import build_lines
from mxkit.runtime.doctor.packages import WITH_MXNET, modules, package_lines
from mxkit.runtime.doctor.probes import Probe, probe
from mxkit.runtime.doctor.resources import resource_lines
from mxkit.runtime.doctor.surroundings import cache_lines, interpreter_lines, limit_lines, variable_lines
from mxkit.runtime.driver import read_driver

__all__ = ["Line", "Report", "Section", "render", "report", "rows", "to_dict", "to_json"]


def report() -> Report:
    """Look at Python, NumPy, MXNet, processors, memory, GPUs, variables, packages and caches; it takes some seconds.

    Returns:
        The findings in eight sections; `render` and `to_json` write them.

    Side effects:
        Two other processes import MXNet and the packages. This one asks the NVIDIA driver, where there is one,
        which initializes CUDA in it: it should not fork children that use GPUs afterwards.
    """
    with ThreadPoolExecutor(2) as pool:
        # oneDNN tells its instruction set only in its log.
        with_mxnet = pool.submit(probe, ["mxnet", *WITH_MXNET], {"DNNL_VERBOSE": "1"})
        others = pool.submit(probe, ["numpy", *modules()])
        return _report(with_mxnet.result(), others.result())


def _report(with_mxnet: Probe, others: Probe) -> Report:
    mxnet, noise = with_mxnet.answers["mxnet"], with_mxnet.noise
    openmp = tuple(mxnet.get("openmp", ()))
    answers = {**others.answers, **with_mxnet.answers}
    return Report(
        (
            Section("python", "Python", interpreter_lines(answers["numpy"])),
            Section("mxnet", "MXNet", build_lines(mxnet, noise)),
            Section("machine", "Machine", resource_lines(openmp)),
            Section("gpu", "GPU", accelerator_lines(read_driver(), installed_kernels(), mxnet)),
            Section("variables", "Environment", variable_lines(noise, openmp)),
            Section("packages", "Packages", package_lines(answers)),
            Section("caches", "Caches", cache_lines()),
            Section("limits", "Known limits", limit_lines()),
        )
    )
