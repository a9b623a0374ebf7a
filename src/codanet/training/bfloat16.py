"""Whether this processor computes in bfloat16 as it says it does."""

import signal
import subprocess
import sys
from pathlib import Path

PRODUCT = "import torch; torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()"


def check_bfloat16(processor: Path = Path("/proc/cpuinfo")) -> None:
    """Some virtual machines offer AMX, whose instructions then end the process: tried in another one, in two seconds.

    Raises:
        ValueError: If a product in bfloat16 ends the process that computes it.
    """
    if not processor.is_file() or "amx_bf16" not in processor.read_text(errors="replace"):
        return
    tried = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, check=False)
    if tried.returncode == -signal.SIGILL:
        raise ValueError(
            "precision is bf16-mixed, but a product in bfloat16 ends the process: this machine offers instructions "
            "(AMX) that it does not execute. Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, or choose "
            "32-true"
        )
