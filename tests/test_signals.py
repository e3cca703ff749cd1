"""The tests get the signals they are about, whoever started them."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.support.server import PROJECT

FROM_A_DEAF_PARENT = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_child_ignores_and_blocks_no_signal() -> None:
    """What a test starts is deaf to nothing, and in the test's own process an interrupt is an exception."""
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    of_child = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    # The C library keeps two signals to itself, which no program can reset; some shells pass them on as ignored.
    ours = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(of_child["SigIgn"], 16) & ours == 0
    assert int(of_child["SigBlk"], 16) & ours == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def test_it_is_so_under_a_parent_that_ignores_every_signal() -> None:
    """`nohup make test &` runs the same tests: neither pytest nor the workers it starts pass on what they inherited."""
    test = f"{__file__}::{test_a_child_ignores_and_blocks_no_signal.__name__}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", test]
    deaf = [sys.executable, "-c", FROM_A_DEAF_PARENT, *pytest]
    done = subprocess.run(deaf, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
