"""A real libcuda.so.1, made by the system's compiler, that reports what environment variables tell it to."""

import os
from pathlib import Path
import shutil
import subprocess
import sys

import mxkit
import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

/* FAKE_GPUS: the places of the GPUs in this table, a digit each */
static const struct {int major, minor, gibibytes; const char* name;} known[] = {
  {9, 0, 139, "NVIDIA H200"}, {8, 6, 24, "NVIDIA GeForce RTX 3090"},
};

static const char* gpus(void) {
  const char* text = getenv("FAKE_GPUS");
  return text ? text : "";
}

/* handles are not numbers */
#define GPU(device) known[gpus()[device - 40] - '0']

int cuInit(unsigned flags) {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && !*visible) return 100;
  return flags ? 1 : number("FAKE_INIT", 0);
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_VERSION", 12040);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = strlen(gpus());
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index + 40;
  return index < (int)strlen(gpus()) ? 0 : 101;
}

int cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, length, "%s", GPU(device).name);
  return number("FAKE_NAME", 0);
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? GPU(device).major : GPU(device).minor;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = (size_t)GPU(device).gibibytes << 30;
  return 0;
}

int cuDeviceGetUuid(char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = i + 16 * (device - 40);
  return 0;
}

int cuGetErrorName(int code, const char** name) {
  static char text[32];
  snprintf(text, sizeof text, "CUDA_ERROR_%d", code);
  *name = code < 1000 ? text : 0;
  return code < 1000 ? 0 : 1;
}
"""

H200, RTX_3090 = "01"
PACKAGES = str(Path(mxkit.__file__).parents[1])


def build(folder, *options, source=SOURCE):
    """Make `folder/libcuda.so.1`."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc, which makes the driver of this test")
    (folder / "driver.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *options, "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(command, cwd=str(folder), check=True)
    return folder


def run(folder, code, **variables):
    """Run code in an interpreter that finds the driver of `folder`; returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment.update(LD_LIBRARY_PATH=str(folder), PYTHONPATH=os.pathsep.join([PACKAGES, *sys.path]), **variables)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, cwd=str(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
