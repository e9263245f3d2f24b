"""Examines MXNet and its environment, and says what to type if something is wrong; `mxkit doctor` prints the report.

A fault of what it examines is a line of the report, not an exception. MXNet is imported in another process, so a crash
of its import is a line too.
"""

from concurrent.futures import ThreadPoolExecutor

from mxkit.runtime.doctor import software
from mxkit.runtime.doctor.findings import Line, Report, Section, render, rows, to_dict, to_json
from mxkit.runtime.doctor.hardware import accelerator_lines, installed_kernels, resource_lines
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.gpus import read_driver
from mxkit.runtime.startup import enabled_libraries

__all__ = ["Line", "Report", "Section", "render", "report", "rows", "to_dict", "to_json"]


def report() -> Report:
    """Examine Python, NumPy, MXNet, processors, memory, GPUs, variables, packages and caches; it takes some seconds.

    Returns:
        The findings in seven sections; `render` and `to_json` write them.

    Side effects:
        Two other processes import MXNet and the packages. This process asks the NVIDIA driver, if there is one, which
        initializes CUDA: it should not fork children that use GPUs afterwards.
    """
    with ThreadPoolExecutor(2) as pool:
        # oneDNN reports its instruction set only in its log.
        with_mxnet = pool.submit(probe, ["mxnet", *software.WITH_MXNET], {"DNNL_VERBOSE": "1"})
        imported = pool.submit(probe, ["numpy", *software.modules()])
        (answers, noise), others = with_mxnet.result(), imported.result()
    mxnet = answers["mxnet"]
    libraries = software.library_lines(software.version_of, enabled_libraries())
    return Report(
        (
            Section("python", "Python", software.interpreter_lines(others.answers["numpy"])),
            Section("mxnet", "MXNet", software.build_lines(mxnet, noise)),
            Section("machine", "Machine", resource_lines()),
            Section("gpu", "GPU", accelerator_lines(read_driver(), installed_kernels(), mxnet)),
            Section("variables", "Environment", software.variable_lines(noise)),
            Section("packages", "Packages", software.package_lines({**others.answers, **answers}) + libraries),
            Section("caches", "Caches", software.cache_lines()),
        )
    )
