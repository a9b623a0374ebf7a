"""Explanations of large pictures stay within bounds of memory, measured in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import codanet

EXPLAIN = """
import resource, sys, torch, codanet
torch.set_num_threads(1)
model = codanet.create_model("l_coda").eval()
model.explain(torch.rand(2, 3, 240, 240))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.platform == "linux":  # where ru_maxrss is at least that of the process that started this one
    lines = open("/proc/self/status").read().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
print(peak if sys.platform == "darwin" else peak * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="asks the process for its peak as Unix does")
def test_l_coda_explains_240x240_within_2_gb():
    path = os.pathsep.join([str(Path(codanet.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", EXPLAIN], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2e9  # the whole process, PyTorch included
