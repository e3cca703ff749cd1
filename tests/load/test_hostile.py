"""Strangers, or one user, attack in every way that we know, all at once, and the other user is served meanwhile.

How long the user waits is printed and not asserted: `hostile.py` says what must hold on two cores, and how to measure
it.
"""

from __future__ import annotations

from pathlib import Path

from tests.load import hostile
from tests.load.attacks import ATTACKS
from tests.load.user_attacks import USER_ATTACKS
from tests.support import proof


def test_user_is_served_while_unauthenticated_clients_attack(tmp_path: Path) -> None:
    """Every claim of the user is granted and every renewal and release done, on the connection that it had; the server
    stays under 512 MiB, logs less than 1 MiB and no traceback, and takes new connections all the time.
    """
    report = hostile.run(tmp_path / "data", proof.count("hostile mix: seconds"), list(ATTACKS))
    _check(report)


def test_user_is_served_while_another_attacks(tmp_path: Path) -> None:
    """One token floods all that is kept and asks all that is dear, and nothing of it is another's cost: every claim,
    renewal, release and retry of the other user is answered as promised (C5), and no name is granted twice (I1, I2).
    """
    report = hostile.run(tmp_path / "data", proof.count("hostile mix by a user: seconds"), list(USER_ATTACKS))
    _check(report)
    assert report.granted_twice == []
    assert report.latency_ms["late retry"]["count"] > 0


def _check(report: hostile.Report) -> None:
    print("\n" + report.as_table())
    assert report.wrong == []
    assert report.asked and report.user_connections == 1
    assert report.not_ready == []
    assert report.memory_bytes < hostile.MEMORY_BYTES_MAX
    assert report.log_bytes < hostile.LOG_BYTES_MAX, report.log[:2_000]
    assert report.tracebacks == 0, report.log[:5_000]
    for name, row in report.attacks.items():
        assert row["opened"] + row["not_opened"], f"{name}: an attack that never began proves nothing"
