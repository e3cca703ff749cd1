"""Run `make test` on every supported Python of this machine, each in a clean clone, and print a table.

    make pythons                                     # pyenv's interpreters and those on the PATH
    make pythons PYTHONS="/opt/py/bin/python3.14"    # these as well
    make pythons ARGS="tests/core"                   # only some of the tests

The clones and the logs stay in `.pythons`. Only committed changes are tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".pythons"
ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3] + sys.abiflags, sys.prefix == sys.base_prefix)"
ASK_SECONDS_MAX = 10
SUMMARY = re.compile(r"(\d+) (passed|failed|error|skipped)")


@dataclass(frozen=True)
class Interpreter:
    """One installed Python."""

    version: str
    path: Path

    @property
    def minor_version(self) -> str:
        """Return the version as the Makefile lists it; a free-threaded build ends in `t`."""
        return re.sub(r"^(\d+\.\d+)\.\d+", r"\1", self.version)

    @property
    def clone(self) -> Path:
        """Return where this interpreter's clone is."""
        return FOLDER / self.version


@dataclass
class Result:
    """The outcome of one test run."""

    interpreter: Interpreter
    code: int
    minutes: float
    counts: dict[str, int]

    def __str__(self) -> str:
        count = self.counts.get
        outcome = "ok" if self.code == 0 else f"exit {self.code}"
        failed = count("failed", 0) + count("error", 0)
        return (
            f"{self.interpreter.version:<9}{outcome:<9}{count('passed', 0):>7,}{failed:>8,}{count('skipped', 0):>9,}"
            f"{self.minutes:>9.1f}  {self.interpreter.path}"
        )


def supported_versions() -> list[str]:
    """Return the versions that the Makefile accepts."""
    (line,) = re.findall(r"^SUPPORTED\s*:=\s*(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return str(line).split()


def candidates(given: Iterable[str]) -> Iterator[Path]:
    """Yield everything that may be an interpreter: those given, pyenv's, and those on the PATH."""
    for name in given:
        found = shutil.which(name)
        if found is None:
            raise FileNotFoundError(f"PYTHONS names {name}, which is not a program")
        yield Path(found).absolute()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin/python3"))
    names = ["python3", *(f"python{version}" for version in supported_versions())]
    for folder in os.get_exec_path():
        if Path(folder) != pyenv / "shims":
            yield from (Path(folder) / name for name in names)


def ask(path: Path) -> Interpreter | None:
    """Return what is installed at a path; None for a virtual environment and for anything that is not a Python."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", ASK], capture_output=True, text=True, check=False, timeout=ASK_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, _, is_base = done.stdout.strip().partition(" ")
    return Interpreter(version, path) if done.returncode == 0 and is_base == "True" else None


def find(given: Iterable[str]) -> list[Interpreter]:
    """Return the interpreters to test, the oldest first and each version once."""
    found: dict[str, Interpreter] = {}
    for path in candidates(given):
        interpreter = ask(path)
        if interpreter is not None:
            found.setdefault(interpreter.version, interpreter)
    supported = supported_versions()
    others = [each.version for each in found.values() if each.minor_version not in supported]
    if others:
        print(f"not supported, so not tested: {', '.join(others)}", flush=True)
    tested = [each for each in found.values() if each.minor_version in supported]
    return sorted(tested, key=lambda each: [int(part) for part in re.findall(r"\d+", each.version)])


def clone(interpreter: Interpreter) -> None:
    """Make a clean clone of the last commit."""
    shutil.rmtree(interpreter.clone, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, interpreter.clone], check=True)


def make(interpreter: Interpreter, *arguments: str) -> subprocess.Popen[str]:
    """Start `make` in the clone, as a person would there."""
    ours = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHONS"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.Popen(
        ["make", *arguments, f"PYTHON={interpreter.path}"],
        cwd=interpreter.clone,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run_tests(interpreter: Interpreter, arguments: str) -> Result:
    """Run `make test` in a clean clone; print its progress, and keep all of its output in a log."""
    log = FOLDER / f"{interpreter.version}.log"
    clone(interpreter)
    print(f"{interpreter.version}: make test with {interpreter.path}, log in {log.relative_to(ROOT)}", flush=True)
    began, percent, summary = time.monotonic(), 0, ""
    with make(interpreter, "test", f"ARGS={arguments}") as process, log.open("w", encoding="utf-8") as file:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()
            reached = re.search(r"\[ *(\d+)%\]$", line)
            if reached is not None and int(reached[1]) // 10 > percent // 10:
                percent = int(reached[1])
                print(f"{interpreter.version}: {percent:>3} %", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                print(f"{interpreter.version}: {line.rstrip()}", flush=True)
            if SUMMARY.search(line) and " in " in line:
                summary = line
    counts = {name: int(number) for number, name in SUMMARY.findall(summary)}
    code = process.returncode or (0 if counts.get("passed") else 1)
    return Result(interpreter, code, (time.monotonic() - began) / 60, counts)


def main() -> int:
    """Test all of them, also after a failure; 1 if any failed."""
    if not (ROOT / ".git").exists():
        print("make pythons tests clones, so it needs a git checkout.", file=sys.stderr)
        return 2
    try:
        interpreters = find(os.environ.get("PYTHONS", "").split())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    missing = [each for each in supported_versions() if each not in {found.minor_version for found in interpreters}]
    if not interpreters:
        print("No supported Python was found. Add one: make pythons PYTHONS=/path/to/python3", file=sys.stderr)
        return 2
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode != 0:
        print("uncommitted changes are not tested", flush=True)
    results = [run_tests(interpreter, os.environ.get("ARGS", "")) for interpreter in interpreters]
    print(f"\n{'Python':<9}{'result':<9}{'passed':>7}{'failed':>8}{'skipped':>9}{'minutes':>9}  interpreter")
    print("\n".join(str(result) for result in results))
    if missing:
        print(f"not found here: {', '.join(missing)}; add it with PYTHONS=/path/to/python3")
    return 1 if any(result.code for result in results) else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
