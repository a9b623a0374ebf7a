"""Whether this processor computes in bfloat16, and as it says it does."""

import functools
import signal
import subprocess
import sys
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo")  # where Linux says what a processor can do
PRODUCT = "import torch; torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()"


def has_bfloat16(processor: Path = PROCESSOR) -> bool:
    """Whether it has instructions for products in bfloat16, by Linux's word (AVX512_BF16), and executes them.

    Elsewhere such products are made by way of float32, or without vectors, and take longer than in float32.
    """
    if "avx512_bf16" not in _abilities(processor):
        return False
    try:
        check_bfloat16(processor)
    except ValueError:
        return False
    return True


def check_bfloat16(processor: Path = PROCESSOR) -> None:
    """Some virtual machines offer AMX, whose instructions then end the process: tried in another one, in two seconds.

    Raises:
        ValueError: If a product in bfloat16 ends the process that computes it.
    """
    if "amx_bf16" in _abilities(processor) and _ended_by(PRODUCT) == signal.SIGILL:
        raise ValueError(
            "precision is bf16-mixed, but a product in bfloat16 ends the process: this machine offers instructions "
            "(AMX) that it does not execute. Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, or choose "
            "32-true"
        )


def _abilities(processor: Path) -> str:
    return processor.read_text(errors="replace") if processor.is_file() else ""


@functools.cache
def _ended_by(program: str) -> int:
    """The signal that ended the program, 0 for none."""
    return max(0, -subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode)
