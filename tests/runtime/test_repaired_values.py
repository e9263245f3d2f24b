"""Every repaired operator beside MXNet's own, and beside NumPy in double precision, at numbers of 1e-8 to 1e8 (B21)."""

import os
from pathlib import Path
import subprocess
import sys

import mxkit
import numpy as np
import pytest
from repaired_values import CASES, EXPONENTS, values

SCRIPT = Path(__file__).with_name("repaired_values.py")
# Double rounding of the reference's own steps, and of float32's sums of six numbers.
CLOSE = 4e-6


def reference(name, exponent):
    """Outputs and gradient of the sum of outputs, in double precision: by central differences, if it is not given."""
    _, function, _, *given = CASES[name]
    x = values(name, exponent).astype("float64")
    outputs, gradient = function(x), np.zeros_like(x)
    if given:
        return outputs, given[0](x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = abs(x[place]) * 1e-4 or 10.0**exponent * 1e-4
        before, after = (np.asarray(function(x + sign * step)) for sign in (-1, 1))
        gradient[place] = np.sum(after - before) / (2 * step[place])
    return np.asarray(outputs), gradient


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Values of mxkit's operators, and of MXNet's."""
    folder = tmp_path_factory.mktemp("values")
    environment = {**os.environ, "PYTHONPATH": str(Path(mxkit.__file__).parents[1])}
    started = []
    for way in ([], ["--plain"]):
        file = folder / f"{len(way)}.npz"
        command = [sys.executable, str(SCRIPT), str(file), *way]
        started.append((file, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)))
    for _, process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
    return [np.load(file) for file, _ in started]


def error(array, expected):
    """The largest difference, by the size of the largest expected number."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = abs(array.astype("float64").reshape(expected.shape) - expected)
        return float(np.nanmax(difference) / max(abs(expected).max(), 1e-300)) if difference.size else 0.0


def apart(name, found):
    """Rows of a case: exponent, whether forward bits are MXNet's, and errors of both against double precision."""
    ours, plain = found
    for exponent in EXPONENTS:
        key = f"{name} {exponent}"
        outputs, gradient = reference(name, exponent)
        same = all(ours[each].tobytes() == plain[each].tobytes() for each in (key, f"{key} recorded"))
        errors = [error(one[f"{key} recorded"], outputs) for one in found]
        errors += [error(one[f"{key} gradient"], gradient) for one in found]
        yield exponent, same, errors


@pytest.mark.parametrize("name", CASES)
def test_a_repair_keeps_mxnets_outputs_and_has_the_right_gradient(found, name):
    for exponent, same, (ours, plain, gradient, of_plain) in apart(name, found):
        assert same or ours <= plain, f"10^{exponent}: off by {ours:.1e}, MXNet by {plain:.1e}"
        words = f"10^{exponent}: gradient off by {gradient:.1e}, MXNet's by {of_plain:.1e}"
        assert gradient <= max(CLOSE, of_plain), words


if __name__ == "__main__":  # the table of docs/runtime.md
    loaded = [np.load(file) for file in sys.argv[1:]]
    print("| operator | outputs | gradient off by at most | MXNet's gradient |\n|---|---|---:|---:|")
    for name in CASES:
        rows = list(apart(name, loaded))
        outputs = "MXNet's bits" if all(same for _, same, _ in rows) else "nearer to double precision"
        worst = [max(errors[which] for *_, errors in rows) for which in (2, 3)]
        print(f"| {name} | {outputs} | {worst[0]:.0e} | {worst[1]:.0e} |")
