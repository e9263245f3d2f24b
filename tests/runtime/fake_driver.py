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

/* FAKE_GPUS: "major minor gibibytes name;..." */
static const char* gpu(int index) {
  const char* text = getenv("FAKE_GPUS");
  for (; text && index > 0; --index) {
    text = strchr(text, ';');
    if (text) ++text;
  }
  return text && *text ? text : 0;
}

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
  for (*count = 0; gpu(*count); ++*count) {}
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index + 40;  /* handles are not numbers */
  return gpu(index) ? 0 : 101;
}

int cuDeviceGetName(char* name, int length, int device) {
  const char* text = gpu(device - 40);
  int skip = 0;
  sscanf(text, "%*d %*d %*d %n", &skip);
  snprintf(name, length, "%.*s", (int)strcspn(text + skip, ";"), text + skip);
  return number("FAKE_NAME", 0);
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  int major, minor;
  sscanf(gpu(device - 40), "%d %d", &major, &minor);
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? major : minor;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  int gibibytes;
  sscanf(gpu(device - 40), "%*d %*d %d", &gibibytes);
  *bytes = (size_t)gibibytes << 30;
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

H200 = "9 0 139 NVIDIA H200"
RTX_3090 = "8 6 24 NVIDIA GeForce RTX 3090"
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
