"""Memory of another process, which is not that of the tests around it.

On Linux ``ru_maxrss`` of a process begins with the size of the one that started it, and a process of pytest holds
gigabytes; so a small program stands between.
"""

from pathlib import Path
import subprocess
import sys

LAUNCHER = """
import pathlib, resource, subprocess, sys

code = subprocess.call(sys.argv[2:])
pathlib.Path(sys.argv[1]).write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
sys.exit(code)
"""


def run_measured(command: list[str], peak_file: Path, **options) -> tuple[subprocess.CompletedProcess, int]:
    """Runs a command as ``subprocess.run`` does; also the peak memory of the largest of its processes [bytes].

    Args:
        command: program and arguments.
        peak_file: where the launcher writes the peak.
        options: of ``subprocess.run``.
    """
    done = subprocess.run([sys.executable, "-c", LAUNCHER, str(peak_file), *command], **options)
    return done, int(peak_file.read_text())
