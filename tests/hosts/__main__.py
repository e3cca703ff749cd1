"""`make hosts`: install the pinned agent hosts where they are missing, then run this ring.

    make hosts                                    # every host, every case
    make hosts ARGS="-k codex"                    # some of them
    HOLDFAST_TEST_HOSTS=/srv/hosts make hosts     # hosts that are installed there, without npm

Install scripts of the packages do not run. Without Node there is nothing to install, and the ring is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.hosts.hosts import FOLDER, HOSTS, VARIABLE, Package
from tests.support.server import PROJECT

INSTALL_SECONDS_MAX = 900


def main() -> int:
    """Return the exit code of pytest, or 0 if the ring is skipped."""
    if VARIABLE not in os.environ:
        npm = shutil.which("npm")
        if npm is None:
            print(
                "SKIPPED: the agent hosts need Node with npm, which is not on the PATH. Install it and run this again."
            )
            return 0
        for host in HOSTS:
            if host.program is None and not _install(npm, host.package):
                return 1
        os.environ[VARIABLE] = str(FOLDER)
    workers = os.environ.get("WORKERS") or "2"
    options = ["-n", workers, "--dist", "worksteal", "tests/hosts", *sys.argv[1:]]
    return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=PROJECT, check=False).returncode


def _install(npm: str, package: Package) -> bool:
    print(f"Installing {package.name} {package.version} into {package.path} …", flush=True)
    # Renamed at the end, so that an interrupted installation starts again.
    partial = package.path.with_name(f"{package.path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "package.json").write_text('{"private": true}\n')
    flags = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
    command = [npm, "install", *flags, f"{package.name}@{package.version}"]
    done = subprocess.run(command, cwd=partial, timeout=INSTALL_SECONDS_MAX, check=False)
    if done.returncode != 0:
        print(f"npm cannot install {package.name} {package.version}; its message is above.", file=sys.stderr)
        return False
    shutil.rmtree(package.path, ignore_errors=True)
    partial.rename(package.path)
    return True


if __name__ == "__main__":
    sys.exit(main())
