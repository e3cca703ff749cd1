"""Runs the blocks of one page as a reader would: in order, in one shell and one Python, against a real server.

What is not as the reader has it, and nothing else:

- the server is a fresh one on a free port: `127.0.0.1:7420` in a block is replaced by its address;
- the home directory is a temporary one, with the server's token and `client.toml` in it. So is the working directory;
  it has the project's `examples` and `.venv`, and the reader's own programs, which do nothing (`PROGRAMS`);
- `/etc` and `/var/lib` are folders of that directory; `https://holdfast.example` is the server;
- `make run` installs nothing and takes a free port; `sleep` never sleeps for longer than a second;
- set-up may ask the server by `api NAME/VERB BODY`, and read a `field` of its answer;
- `curl` also notes the status of each answer, because it ends with 0 whatever the server says.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.testing import RunningServer
from tests.support.pages import ROOT, Block

BLOCK_SECONDS_MAX = 60.0
PROGRAMS = ("agent.sh", "deploy.sh", "fix-issue", "fix.sh", "push.sh", "report.sh", "review.sh", "work")

# Reads the names of files, runs each in this shell, and says with which codes commands failed. An ERR trap sees what
# `set -e` would end at, and the block goes on.
SHELL = r"""
set -o pipefail
make() {
    command make --no-print-directory -C "$PROJECT" -o .venv/run.stamp "$@" \
        DATA="$HOME/data" ARGS="--listen 127.0.0.1:0"
}
api() {
    path=locks/$1; shift
    "$CURL" -sS -H "Authorization: Bearer $(cat ~/.config/holdfast/token)" \
        -H 'Content-Type: application/json' "$SERVER/$path" ${1:+-d "$1"}
}
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
trap 'codes="$codes $?"' ERR
while read -r file; do
    codes=
    . "$file" >"$file.out" 2>&1 </dev/null
    echo "$codes"
done
"""

# The same for Python. A block may await at its top level, as in a notebook.
PYTHON = r"""
import ast, asyncio, contextlib, inspect, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    file = line.strip()
    failed = ""
    with open(file + ".out", "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(open(file).read(), file, "exec", flags=flags, dont_inherit=True)
            coroutine = eval(code, names)
            if inspect.iscoroutine(coroutine):
                asyncio.run(coroutine)
        except BaseException as error:
            traceback.print_exc()
            failed = type(error).__name__
    print(failed, flush=True)
"""

SLEEP = '#!/bin/sh\nexec {sleep} "$(printf "%s\\n1\\n" "$1" | sort -n | head -n 1)"\n'
CURL = """#!/bin/sh
head=$(mktemp)
trap 'sed -n "s/^HTTP[^ ]* \\([0-9]*\\).*/\\1/p" "$head" | tail -n 1 >> "$CURL_STATUSES"; rm -f "$head"' EXIT
{curl} --dump-header "$head" "$@"
"""


class PageSession:
    """A folder, a shell and a Python for the blocks of one page."""

    def __init__(self, folder: Path, server: RunningServer) -> None:
        self._folder = folder
        self._server = server
        self._home = folder / "home"
        self._work = folder / "work"
        self._statuses = folder / "statuses"
        self._count = 0
        self._furnish()
        self._env = self._environment()
        self._drivers: dict[str, subprocess.Popen[str]] = {}

    def run(self, block: Block) -> str:
        """Run a block, with its set-up, and return what it printed. Fails unless all ended as the marks say."""
        if "file" in block.marks:
            self._program(self._work / block.marks["file"], self._as_here(block.text))
            return ""
        language = "python" if block.language == "python" else "sh"
        text = "".join(commands_of(block)) if block.language == "console" else block.text
        if before := block.marks.get("before"):
            failed, output = self._feed(language, before)
            assert not failed, f"{block}: the set-up failed ({failed}):\n{output}"
        if "until Ctrl-C" in block.marks:
            return self._until_interrupted(block, text)
        self._statuses.write_text("")
        failed, output = self._feed(language, text)
        expected = block.marks.get("exit codes", "")
        assert failed == expected, f"{block}: ended with {failed or 0}, not with {expected or 0}:\n{output}"
        refused = [status for status in self._statuses.read_text().split() if not status.startswith("2")]
        expected = block.marks.get("answers", "")
        assert " ".join(refused) == expected, (
            f"{block}: curl was answered {refused}, not {expected or '2xx'}:\n{output}"
        )
        if block.language == "console":
            printed = {likeness(line) for line in self._as_shown(output).splitlines() if line.strip()}
            missing = set(shown_by(block)) - printed
            assert not missing, f"{block}: not in what it printed: {missing}:\n{output}"
            more = printed - set(shown_by(block)) if "whole" in block.marks else set()
            assert not more, f"{block}: it printed more than is shown: {more}"
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for driver in self._drivers.values():
            _kill_group(driver)
            for pipe in (driver.stdin, driver.stdout):
                if pipe is not None:
                    pipe.close()

    def _furnish(self) -> None:
        (self._home / ".config").mkdir(parents=True)
        shutil.copytree(Path(self._server.environment()["XDG_CONFIG_HOME"]), self._home / ".config", dirs_exist_ok=True)
        for part in ("etc", "var/lib", "bin"):
            (self._folder / part).mkdir(parents=True)
        self._work.mkdir()
        (self._work / "examples").symlink_to(ROOT / "examples")
        (self._work / ".venv").symlink_to(sys.prefix)
        for name in PROGRAMS:
            self._program(self._work / name, "#!/bin/sh\nexit 0\n")
        self._program(self._folder / "bin" / "sleep", SLEEP.format(sleep=shutil.which("sleep")))
        self._program(self._folder / "bin" / "curl", CURL.format(curl=shutil.which("curl")))

    def _environment(self) -> dict[str, str]:
        # Nor the last: a reader's Python keeps what it compiled, and each command would pay for it.
        foreign = ("HOLDFAST_", "XDG_", "PYTHONDONTWRITEBYTECODE")
        env = {name: value for name, value in self._server.env().items() if not name.startswith(foreign)}
        path = f"{self._folder / 'bin'}:{Path(sys.prefix) / 'bin'}:{env['PATH']}"
        return env | {
            "HOME": str(self._home),
            "PATH": path,
            "PROJECT": str(ROOT),
            "SERVER": self._server.url,
            "CURL": shutil.which("curl") or "curl",
            "CURL_STATUSES": str(self._statuses),
            "TMPDIR": str(self._folder),
        }

    @staticmethod
    def _program(file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def _as_here(self, text: str) -> str:
        address = self._server.url.removeprefix("http://")
        for there, here in (
            ("--listen 127.0.0.1:7420", "--listen 127.0.0.1:0"),
            ("127.0.0.1:7420", address),
            ("https://holdfast.example", self._server.url),
            ("/etc/", f"{self._folder}/etc/"),
            ("/var/lib/", f"{self._folder}/var/lib/"),
        ):
            text = text.replace(there, here)
        return text

    def _as_shown(self, output: str) -> str:
        return output.replace(self._server.url, "http://127.0.0.1:7420").replace(str(self._home), "/home/you")

    def _write(self, text: str, ending: str) -> Path:
        self._count += 1
        file = self._folder / f"block-{self._count}.{ending}"
        # In a shell the last line ends with 0, so that its failure is told once and not also as that of the file.
        file.write_text(self._as_here(text) + ("\n:\n" if ending == "sh" else "\n"))
        return file

    def _feed(self, language: str, text: str) -> tuple[str, str]:
        """Run a text in the shell or in Python; return what failed, and what was printed."""
        driver = self._drivers.get(language) or self._start(language)
        file = self._write(text, language)
        assert driver.stdin is not None and driver.stdout is not None
        driver.stdin.write(f"{file}\n")
        driver.stdin.flush()
        if not select.select([driver.stdout], [], [], BLOCK_SECONDS_MAX)[0]:
            return f"still running after {BLOCK_SECONDS_MAX} s", _read(file)
        answer = driver.stdout.readline()
        return (answer.strip() if answer else "the whole session"), _read(file)

    def _start(self, language: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PYTHON] if language == "python" else ["bash", "-c", SHELL]
        self._drivers[language] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._work,
            env=self._env,
            text=True,
            start_new_session=True,
        )
        return self._drivers[language]

    def _until_interrupted(self, block: Block, text: str) -> str:
        """Run a block in a shell of its own, interrupt it when it has said what the mark names, and see how it ends."""
        file = self._write(text, "sh")
        out = Path(f"{file}.out")
        wrapped = SHELL.partition("trap")[0] + file.read_text()
        with out.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", wrapped],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env=self._env,
                start_new_session=True,
            )
            deadline = time.monotonic() + BLOCK_SECONDS_MAX
            while block.marks["until Ctrl-C"] not in out.read_text() and time.monotonic() < deadline:
                assert process.poll() is None, f"{block}: ended by itself:\n{_read(file)}"
                time.sleep(0.05)
            said = block.marks["until Ctrl-C"] in out.read_text()
            os.killpg(process.pid, signal.SIGINT)
            try:
                code = process.wait(BLOCK_SECONDS_MAX)
            finally:
                _kill_group(process)
        assert said and code in {0, 130, -signal.SIGINT}, f"{block}: ended with {code}:\n{_read(file)}"
        return _read(file)


def commands_of(block: Block) -> list[str]:
    """The commands of a `console` block: what follows `$ `."""
    return [line[2:] for line in block.text.splitlines(keepends=True) if line.startswith("$ ")]


def shown_by(block: Block) -> list[str]:
    """The lines that a `console` block shows as printed."""
    return [likeness(line) for line in block.text.splitlines() if line.strip() and not line.startswith("$ ")]


def likeness(line: str) -> str:
    """A line without what is different each time: times, spans, numbers, ids, the width of columns, and which of two
    clocks is ahead.
    """
    line = line.replace("behind", "off").replace("ahead of", "off")
    line = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID", line)
    line = re.sub(r"\b(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\b", "TIME", line)
    line = re.sub(r"\b\d+(\.\d+)? (ms|s|min|h|days?)\b", "SPAN", line)
    return re.sub(r"\s+", " ", re.sub(r"\b\d+(\.\d+)?\b", "N", line)).strip()


def _kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(file: Path) -> str:
    out = Path(f"{file}.out")
    return out.read_text(errors="replace") if out.exists() else ""
