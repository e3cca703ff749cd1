"""House style is a unit test.

Each rule is a function from a file's path (below src/holdfast) and text to the list of its complaints. Each test runs
one rule over the whole tree and over a small bad sample, so that a rule which can no longer fail fails here.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"

LEAVES = {
    "clientconfig",
    "config",
    "durations",
    "errors",
    "extras",
    "privatefiles",
    "sanitize",
    "neterrors",
}
PUBLIC = "the public names"
"""What a user imports from `holdfast` itself."""
STORES = {"journal", "journal/sqlite", "journal/postgres"}
SERVER = {"api", "api/auth", "api/handlers", "engine", "http", "observability", "wire", "core", *LEAVES}

# What may import what: a package, a module beside the packages, or one file of a package, which then counts alone.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "sanitize": set(),
    "privatefiles": set(),
    "neterrors": set(),
    "durations": set(),
    "config": {"durations", "errors", "privatefiles"},
    "clientconfig": {"errors", "privatefiles"},
    "fencing": {"errors"},
    "core": set(),
    "wire": {*LEAVES},
    "journal": {"core", "journal/sql", *LEAVES},
    "journal/sql": set(),
    "journal/sqlite": {"journal", "journal/sql", "core", *LEAVES},
    # It shares the search of records and the pruning with the archive on SQLite.
    "journal/postgres": {"journal", "journal/sqlite", "journal/sql", "core", *LEAVES},
    "journal/postgres/connection.py": {"core", "journal", "journal/sql", *LEAVES},
    "engine": {*STORES, "core", *LEAVES},
    "http": {"engine", "wire", "core", *LEAVES},
    "observability": {"http", "engine", "wire", "core", *LEAVES},
    "observability/traces.py": {"http", *LEAVES},
    "api/auth": SERVER - {"api", "api/handlers"},
    "api": SERVER - {"api/handlers"},
    "api/handlers": SERVER,
    "dashboard": SERVER,
    "cluster": SERVER,
    "server": {"dashboard", "cluster", *SERVER},
    "client": {"wire", *LEAVES},
    "run": set(),
    # What must start fast: the standard library, and the leaves that import nothing heavy.
    "client/minihttp.py": {"sanitize", "privatefiles", "neterrors"},
    "agents": set(),
    "agents/rlock.py": {"client/minihttp.py", "agents/guard", *LEAVES},
    "agents/guard": {"client/minihttp.py", "durations", "sanitize", "privatefiles"},
    "agents/skill": set(),
    "agents/mcp": {"client", "agents/guard", PUBLIC, *LEAVES},
    "cli": {"run", "agents/skill", "client", "agents/guard", "client/minihttp.py", PUBLIC, *LEAVES},
    "cli/agents/mcp.py": {"agents/mcp", *LEAVES},
    "cli/operators/serve.py": {"client", PUBLIC, "agents/mcp", "server", "api", "engine", *STORES, *LEAVES},
    "cli/operators/doctor.py": {"client", PUBLIC, "server", "api/auth", "engine", *STORES, "core", *LEAVES},
    "cli/operators/backup.py": {"client", PUBLIC, "server", "api/auth", "engine", *STORES, *LEAVES},
    "cli/operators/nodes.py": {"client", PUBLIC, "server", "api/handlers", "engine", *STORES, *LEAVES},
    "cli/operators/store.py": {"client", PUBLIC, "engine", *STORES, *LEAVES},
    "cli/operators/move.py": {"client", PUBLIC, "server", "api/auth", "engine", *STORES, *LEAVES},
    # What a user's tests get: the public client, and the server only as a command. None needs the extra `server`.
    "testing": {PUBLIC, *LEAVES},
    "testing/pytest_plugin.py": {PUBLIC},
    "__init__": {"client", "fencing", *LEAVES},
    "__main__": {"cli"},
}

# The extra of pyproject.toml each may count on, beside the base dependencies. Not named here: the base alone.
EXTRA: dict[str, str] = {
    "journal": "server",
    "journal/sqlite": "server",
    "journal/postgres": "server",
    "journal/postgres/connection.py": "postgres",
    "engine": "server",
    "http": "server",
    "observability": "server",
    "api/auth": "server",
    "api": "server",
    "api/handlers": "server",
    "dashboard": "server",
    "cluster": "server",
    "server": "server",
    "observability/traces.py": "otel",
    "testing/pytest_plugin.py": "pytest",
    "cli/operators/serve.py": "server",
    "cli/operators/doctor.py": "server",
    "cli/operators/backup.py": "server",
    "cli/operators/nodes.py": "server",
    "cli/operators/store.py": "server",
    "cli/operators/move.py": "server",
    "client": "async",
    "agents/mcp": "mcp",
}

# These import the standard library and msgspec, and nothing else at all.
PURE = {"core", "fencing", "agents/guard", "agents/skill", "client/minihttp.py", "run", *LEAVES}

# minihttp.py: the client's clock would cost `rlock` and the guard a third of their time to start; each is one process
# for one question. agents/guard/state.py: the guard's own, for its keeper and its log.
# guardian.py: a process of its own that imports nothing of ours; a test compares its clocks with the client's.
MAY_READ_THE_CLOCK = {
    "engine/clock.py",
    "client/clock.py",
    "client/minihttp.py",
    "agents/guard/state.py",
    "run/guardian.py",
}
MAY_READ_CHANCE = {"engine/ids.py", "client/clock.py"}

# What commands know of the client beside its public names: times.py its wall clock, so that one object reads the clock;
# probe.py five things by which the doctor looks at an answer as it came, and a backup is read piece by piece, for which
# the client has no method.
CLIENT_INSIDES_MAX = 6

# The modules of the client from the bottom up: each imports only what is below it, at runtime or for types alone. Those
# in one row do not import each other, so `sync` and `aio` never meet.
CLIENT_LAYERS: tuple[set[str], ...] = (
    {"clock", "minihttp"},
    {"answers", "config", "deadline", "requests"},
    {"records"},
    {"options"},
    {"effects"},
    {"retry"},
    {"lease_flows", "event_flows"},
    {"claim_flows", "loss_stream"},
    {"queries"},
    {"background", "transport"},
    {"aio_transport", "sync_transport"},
    {"lease"},
    {"base"},
    {"sync", "aio"},
    {"functions"},
)

FUNCTION_LINES_MAX = 60
ESTABLISHED_NOUNS = {"decoding", "paging", "rendering"}

CLOCK = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?"
    r"|datetime\.datetime\.(now|utcnow|today)|datetime\.date\.today"
)
CLOCK_WITHOUT_ARGUMENT = re.compile(r"time\.(gmtime|localtime|ctime|asctime)")
CHANCE = re.compile(
    r"random\..+|secrets\.(?!compare_digest$).+|os\.(urandom|getrandom)|uuid\.uuid[14678]|ssl\.RAND_\w+"
)
REPR_OF_AN_ERROR = re.compile(r"\{(error|exception|failure|outcome)!r|repr\((error|exception|failure|outcome)\)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
# Upper case is SQL whatever follows; in lower case "create a token" is prose and "create table token" is not.
SQL = re.compile(
    r"\s*((SELECT|INSERT|UPDATE|DELETE|CREATE|REPLACE|ALTER|DROP|WITH)\s"
    r"|(?i:select\s.+\sfrom\s|insert\s+(or\s+\w+\s+)?into\s|update\s+\w+\s+set\s|delete\s+from\s+\w+(\s+where\s|;|\s*$)"
    r"|(create|alter|drop)\s+(\w+\s+)?(table|index|view|trigger)\s+\w))",
    re.DOTALL,
)
ADDRESS = re.compile(r"://|\s@\s|^\s*-(?!-hash=)|--(?!hash=sha256:[0-9a-f]{64}\b)[a-z]")

Rule = Callable[[str, str], list[str]]


def every_file(rule: Rule, pattern: str = "*.py") -> list[str]:
    """Every complaint of a rule about the source tree."""
    files = [path for path in sorted(SOURCE.rglob(pattern)) if path.is_file() and "__pycache__" not in path.parts]
    return [complaint for path in files for complaint in rule(path.relative_to(SOURCE).as_posix(), _text(path))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# --- Imports ---------------------------------------------------------------------------------------------------------


def unit_of(path: str) -> str:
    """The row of the tables that a file falls under: its own, or that of the nearest package with one."""
    if path in MAY_IMPORT:
        return path
    package = PurePosixPath(path).parent
    while package.as_posix() != "." and package.as_posix() not in MAY_IMPORT:
        package = package.parent
    return PurePosixPath(path).parts[0].removesuffix(".py") if package.as_posix() == "." else package.as_posix()


def unit_named(name: str) -> str:
    """The row that a dotted name below `holdfast` falls under. Files that count alone are not targets, but for one."""
    parts = name.split(".")
    if parts[:2] == ["client", "minihttp"]:
        return "client/minihttp.py"
    rows = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((row for row in rows if row in MAY_IMPORT), parts[0])


def imported(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module a file imports, at any depth, in any branch, by statement or by `import_module`."""
    package = ["holdfast", *PurePosixPath(path).parts[:-1]]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                origin = ".".join([*base, *([module] if module else [])])
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def wrong_arrows(path: str, text: str) -> list[str]:
    unit = unit_of(path)
    if unit not in MAY_IMPORT:
        return [f"{path}: {unit!r} is not in MAY_IMPORT; say there what it may import"]
    complaints = []
    for line, name in imported(path, ast.parse(text)):
        origin, _, rest = name.partition(".")
        target = PUBLIC if rest in public_names() else unit_named(rest)
        home = unit_of(PurePosixPath(path).with_name("__init__.py").as_posix())
        if origin == "holdfast" and target not in {unit, home, "__version__", *MAY_IMPORT[unit]}:
            complaints.append(f"{path}:{line}: {unit} may not import {name}")
    return complaints


@cache
def public_names() -> frozenset[str]:
    """What `holdfast` itself offers to users."""
    for node in ast.parse(_text(SOURCE / "__init__.py")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return frozenset(ast.literal_eval(value)) - {"__version__"}
    return frozenset()


def dependencies(extra: str | None = None) -> set[str]:
    """The import names of the base dependencies, or of one extra's."""
    project = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    names = {re.split(r"[^\w.-]", line)[0].replace("-", "_").lower() for line in wanted}
    # What OpenTelemetry is installed as, it is not imported as.
    return {"opentelemetry" if name.startswith("opentelemetry_") else name for name in names}


def undeclared_imports(path: str, text: str) -> list[str]:
    unit = unit_of(path)
    allowed = {"msgspec"} if unit in PURE else dependencies()
    if unit in EXTRA:
        allowed |= dependencies(EXTRA[unit])
    known = {"holdfast", *sys.stdlib_module_names, *allowed}
    return [
        f"{path}:{line}: {unit} may not count on {name.partition('.')[0]}"
        for line, name in imported(path, ast.parse(text))
        if name.partition(".")[0] not in known
    ]


def client_insides(path: str, text: str) -> list[str]:
    """What a command imports from inside the client."""
    if PurePosixPath(path).parts[0] != "cli":
        return []
    return [
        f"{path}:{line}: {name}; is there no public name for it?"
        for line, name in imported(path, ast.parse(text))
        if name.startswith("holdfast.client.")
    ]


def wrong_command_imports(path: str, text: str) -> list[str]:
    """Commands of one package import nothing of another's, except from the shared one."""
    package, *packages = PurePosixPath(path).parts[:-1] or [""]
    if package != "cli" or not packages:
        return []
    allowed = tuple(f"holdfast.cli.{package}." for package in (packages[0], "shared"))
    return [
        f"{path}:{line}: {packages[0]} may not import {name}"
        for line, name in imported(path, ast.parse(text))
        if name.startswith("holdfast.cli.") and not f"{name}.".startswith(allowed)
    ]


def wrong_client_layers(path: str, text: str) -> list[str]:
    """A part of the client imports only parts in lower layers."""
    package, *rest = PurePosixPath(path).parts
    part = rest[0].removesuffix(".py") if rest else ""
    if package != "client" or part == "__init__":
        return []
    level = next((number for number, layer in enumerate(CLIENT_LAYERS) if part in layer), None)
    if level is None:
        return [f"{path}: {part!r} is not in CLIENT_LAYERS; add it there"]
    lower = {part}.union(*CLIENT_LAYERS[:level])
    return [
        f"{path}:{line}: {part} may not import {name}"
        for line, name in imported(path, ast.parse(text))
        if name.startswith("holdfast.client.") and name.split(".")[2] not in lower
    ]


def import_graph(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Which of these modules import which others, at any depth and in any branch, for types alone too."""
    homes = {f"holdfast.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}": path for path in files}
    graph: dict[str, set[str]] = {}
    for path, text in files.items():
        names = (name for _, name in imported(path, ast.parse(text)))
        found = {homes.get(name) or homes.get(name.rpartition(".")[0]) for name in names}
        graph[path] = {each for each in found if each is not None} - {path}
    return graph


def import_cycles(files: Mapping[str, str]) -> list[set[str]]:
    """Every group of modules of which each can be reached from each other one by imports."""
    graph = import_graph(files)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            each = ahead.pop()
            if each not in seen:
                seen.add(each)
                ahead += graph[each]
        return seen

    reach = {path: reached(path) for path in graph}
    cycles = {frozenset(each for each in reach[path] if path in reach[each]) for path in graph if path in reach[path]}
    return [set(cycle) for cycle in sorted(cycles, key=sorted)]


# --- Clock and chance ------------------------------------------------------------------------------------------------


def used_names(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Every imported thing a file touches by its full name, and whether it was called without arguments."""
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meaning |= {alias.asname or alias.name: alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    bare_calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            root, dot, rest = ast.unparse(node).partition(".")
            yield node.lineno, meaning.get(root, f"<{root}>") + dot + rest, id(node) in bare_calls


def clock_reads(path: str, text: str) -> list[str]:
    if path in MAY_READ_THE_CLOCK:
        return []
    return [
        f"{path}:{line}: {name} reads the clock; let time arrive as an argument"
        for line, name, is_bare_call in used_names(ast.parse(text))
        if CLOCK.fullmatch(name)
        or (is_bare_call and CLOCK_WITHOUT_ARGUMENT.fullmatch(name))
        or re.search(r"loop(\(\))?>?\.time$", name)
    ]


def chance_reads(path: str, text: str) -> list[str]:
    if path in MAY_READ_CHANCE:
        return []
    return [
        f"{path}:{line}: {name} reads chance; let ids arrive as arguments"
        for line, name, _ in used_names(ast.parse(text))
        if CHANCE.fullmatch(name)
    ]


# --- Shape -----------------------------------------------------------------------------------------------------------


def asserts(path: str, text: str) -> list[str]:
    return [
        f"{path}:{node.lineno}: python -O removes an assert; raise instead"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert)
    ]


def long_functions(path: str, text: str) -> list[str]:
    lengths = (
        (node, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [
        f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX} are allowed"
        for node, lines in lengths
        if lines > FUNCTION_LINES_MAX
    ]


def unfinished(path: str, text: str) -> list[str]:
    return [
        f"{path}:{line}: {found[0]}; finish it or leave it out"
        for line, content in enumerate(text.splitlines(), start=1)
        if (found := UNFINISHED.search(content))
    ]


def repr_of_an_error(path: str, text: str) -> list[str]:
    return [
        f"{path}:{line}: {found[0]}; say what went wrong in words"
        for line, content in enumerate(text.splitlines(), start=1)
        if (found := REPR_OF_AN_ERROR.search(content))
    ]


def missing_docstring(path: str, text: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(text)) else [f"{path}: a module opens with the sentence that is its law"]


def missing_test_sentence(path: str, text: str) -> list[str]:
    return [
        f"{path}:{node.lineno}: {node.name} does not open with the sentence it proves"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def unsorted_exports(path: str, text: str) -> list[str]:
    complaints = []
    for node in ast.parse(text).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                names = [str(item.value) for item in getattr(value, "elts", []) if isinstance(item, ast.Constant)]
                if len(names) != len(getattr(value, "elts", [None])):
                    complaints.append(f"{path}:{node.lineno}: __all__ is not a plain list of names")
                elif names != sorted(set(names)):
                    complaints.append(f"{path}:{node.lineno}: __all__ should read {sorted(set(names))}")
            case ast.AugAssign(target=ast.Name(id="__all__")):
                complaints.append(f"{path}:{node.lineno}: __all__ is written once, in one place")
    return complaints


def sql_strings(path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    # A string that stands alone is a docstring or a comment.
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"{path}:{node.lineno}: SQL lives in .sql files: {node.value[:40]!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in prose and SQL.match(node.value)
    ]


# --- Locks -----------------------------------------------------------------------------------------------------------


def addresses(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: a lock says what, never where from: {line.strip()[:60]!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        if ADDRESS.search(line) and not (line.lstrip().startswith("#") and "://" not in line)
    ]


def pins(text: str) -> dict[str, str]:
    """Each locked package and its version; a requirement that is not pinned and hashed has the version ''."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^\s*#.*\n?", "", text))
    found = {}
    for entry in filter(str.strip, entries):
        name, _, rest = entry.strip().partition("==")
        version = re.match(r"[\w.+!-]+(?=[\s;])", rest)
        found[re.split(r"[^\w.-]", name)[0].lower()] = version[0] if version and "--hash=sha256:" in rest else ""
    return found


# --- The tests -------------------------------------------------------------------------------------------------------


def test_imports_follow_the_arrows() -> None:
    """No package imports another against the arrows of the architecture, and a package without a row is refused."""
    assert every_file(wrong_arrows) == []

    assert wrong_arrows("core/decide.py", "from holdfast.errors import HoldfastError")
    assert wrong_arrows("core/decide.py", "from .. import journal")
    assert wrong_arrows("journal/sql/loader.py", "from ...engine import clock")
    assert wrong_arrows("journal/interface.py", "import holdfast.engine.clock")
    assert wrong_arrows("client/sync.py", "def late():\n    from holdfast.core import values")
    assert wrong_arrows("client/sync.py", "importlib.import_module('holdfast.server')")
    assert wrong_arrows("client/sync.py", "from holdfast import Claim")
    assert wrong_arrows("cli/operators/token.py", "from holdfast.server import app")
    assert wrong_arrows("cli/operators/token.py", "from holdfast import fencing")
    assert wrong_arrows("server/app.py", "from holdfast.cli import main")
    assert wrong_arrows("run/child.py", "from holdfast.cli import main")
    assert wrong_arrows("engine/engine.py", "from holdfast.testing import ManualClock")
    assert wrong_arrows("config/table.py", "import holdfast.core.values")
    assert wrong_arrows("errors.py", "import holdfast.config")
    assert wrong_arrows("novelty/thing.py", "") == [
        "novelty/thing.py: 'novelty' is not in MAY_IMPORT; say there what it may import"
    ]

    assert wrong_arrows("core/decide.py", "import math\nfrom . import values\nfrom holdfast.core import state") == []
    assert (
        wrong_arrows("engine/engine.py", "from holdfast.journal.interface import Journal\nfrom ..errors import E") == []
    )
    assert wrong_arrows("cli/operators/serve.py", "from holdfast.server import app") == []
    assert wrong_arrows("cli/operators/serve.py", "from holdfast import __version__") == []
    assert wrong_arrows("cli/operators/token.py", "from holdfast import Holdfast, JobClaim") == []


def test_commands_use_the_public_client() -> None:
    """Commands import what any user of the client imports, but for a handful of names."""
    assert len(insides := every_file(client_insides)) <= CLIENT_INSIDES_MAX, insides

    assert len(client_insides("cli/x.py", "from holdfast.client.queries import a, b")) == 2
    assert client_insides("cli/x.py", "def late():\n    from holdfast.client import clock")
    assert client_insides("cli/x.py", "from holdfast import Holdfast") == []
    assert client_insides("agents/mcp/x.py", "from holdfast.client import clock") == []


def test_command_packages_do_not_import_each_other() -> None:
    """A room of commands imports itself and what all share; the shared room imports no command."""
    assert every_file(wrong_command_imports) == []

    assert wrong_command_imports("cli/agents/session.py", "from holdfast.cli.workers.run import run")
    assert wrong_command_imports("cli/agents/session.py", "from holdfast.cli import main")
    assert wrong_command_imports("cli/shared/options.py", "from ..agents import session")
    assert wrong_command_imports("cli/agents/session.py", "from holdfast.cli.shared import output") == []
    assert wrong_command_imports("cli/agents/session.py", "from holdfast.cli.agents import rlock") == []
    assert wrong_command_imports("cli/main.py", "from holdfast.cli.workers.run import run") == []


def test_layers_of_the_client() -> None:
    """Operations import neither client, the two clients do not import each other, and no part imports a higher one."""
    assert every_file(wrong_client_layers) == []

    assert wrong_client_layers("client/claim_flows.py", "from holdfast.client.sync import drive")
    assert wrong_client_layers("client/claim_flows.py", "def late():\n    from holdfast.client import aio")
    assert wrong_client_layers("client/claim_flows.py", "if TYPE_CHECKING:\n    from .sync import Claim")
    assert wrong_client_layers("client/sync.py", "import holdfast.client.aio")
    assert wrong_client_layers("client/aio.py", "from holdfast.client import sync")
    assert wrong_client_layers("client/records.py", "from holdfast.client import options")
    assert wrong_client_layers("client/new.py", "")

    assert wrong_client_layers("client/claim_flows.py", "from holdfast.client.effects import NOW") == []
    assert wrong_client_layers("client/functions.py", "from holdfast.client.aio import a") == []
    assert wrong_client_layers("cli/x.py", "from holdfast.client import clock") == []


def test_module_imports_have_no_cycle() -> None:
    """There is no cycle of imports between modules, not even for types. `holdfast` itself only offers their names."""
    paths = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py"})
    assert import_cycles({path.relative_to(SOURCE).as_posix(): _text(path) for path in paths}) == []

    bad = {
        "client/a.py": "if TYPE_CHECKING:\n    from holdfast.client.r.b import B",
        "client/r/b.py": "from holdfast.client.r import c",
        "client/r/c.py": "def late():\n    from holdfast.client.a import A",
        "client/d.py": "from holdfast.client import a",
    }
    assert import_cycles(bad) == [{"client/a.py", "client/r/b.py", "client/r/c.py"}]
    assert import_cycles({**bad, "client/r/c.py": "import holdfast.client.r.e", "client/r/e.py": ""}) == []


def packages_importing_each_other(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every pair of packages with an import in both directions. A module beside the packages counts as one."""

    def package_of(path: str) -> str:
        return PurePosixPath(path).parent.as_posix() if "/" in path else path

    graph = import_graph(files)
    arrows = {(package_of(path), package_of(target)) for path, targets in graph.items() for target in targets}
    return sorted((one, other) for one, other in arrows if one < other and (other, one) in arrows)


def test_no_two_packages_import_each_other() -> None:
    """At every level; `holdfast` itself only offers the names of others."""
    paths = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py"})
    assert packages_importing_each_other({path.relative_to(SOURCE).as_posix(): _text(path) for path in paths}) == []

    bad = {
        "client/a.py": "from holdfast.client.inner import b",
        "client/inner/b.py": "if TYPE_CHECKING:\n    from holdfast.client.c import C",
        "client/c.py": "import holdfast.errors",
        "errors.py": "",
    }
    assert packages_importing_each_other(bad) == [("client", "client/inner")]
    assert packages_importing_each_other({**bad, "client/inner/b.py": ""}) == []


def repeated_classes(files: Mapping[str, str]) -> list[str]:
    """Class names that are defined more than once in one top-level package."""
    counts = Counter(
        (PurePosixPath(path).parts[0], node.name)
        for path, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    return sorted(f"{package}: {name}" for (package, name), count in counts.items() if count > 1)


def test_class_names_are_unique_in_a_package() -> None:
    """One name has one meaning in each top-level package."""
    paths = sorted(SOURCE.rglob("*.py"))
    assert repeated_classes({path.relative_to(SOURCE).as_posix(): _text(path) for path in paths}) == []

    assert repeated_classes({"a/b.py": "class C: ...", "a/d/e.py": "class C: ..."}) == ["a: C"]
    assert repeated_classes({"a/b.py": "class C: ...", "d/e.py": "class C: ..."}) == []


def test_modules_are_named_with_nouns() -> None:
    """No module is named with a participle, but for words that the field uses as nouns."""
    stems = {path.stem for path in SOURCE.rglob("*.py")}
    assert {stem for stem in stems if stem.endswith("ing")} <= ESTABLISHED_NOUNS


def test_testing_cli_and_mcp_are_imported_by_no_module() -> None:
    """The table lets nothing but `python -m holdfast` into cli, two commands into mcp, and nothing into testing."""
    entrances = {
        (unit, target) for unit, targets in MAY_IMPORT.items() for target in targets & {"testing", "cli", "agents/mcp"}
    }
    assert entrances == {
        ("__main__", "cli"),
        ("cli/agents/mcp.py", "agents/mcp"),
        ("cli/operators/serve.py", "agents/mcp"),
    }
    assert set(EXTRA) | PURE <= set(MAY_IMPORT)


def test_imports_are_declared_dependencies() -> None:
    """A package counts only on what its own installation brings, and the core only on msgspec."""
    assert every_file(undeclared_imports) == []

    assert undeclared_imports("core/state.py", "from sortedcontainers import SortedDict")
    assert undeclared_imports("errors.py", "import click")
    assert undeclared_imports("client/sync.py", "import starlette")
    assert undeclared_imports("client/sync_transport.py", "import urllib3")
    assert undeclared_imports("cli/operators/token.py", "import apsw")
    assert undeclared_imports("engine/engine.py", "import numpy.random")

    assert undeclared_imports("core/state.py", "import msgspec, typing") == []
    assert undeclared_imports("journal/sqlite/journal.py", "import apsw") == []
    assert undeclared_imports("client/aio.py", "import aiohttp, msgspec") == []


def test_one_object_reads_the_clock() -> None:
    """Only engine/clock.py, and the client's own, read a clock."""
    assert every_file(clock_reads) == []

    assert clock_reads("core/decide.py", "import time\nnow = time.time()")
    assert clock_reads("core/decide.py", "import time as t\nread = t.monotonic_ns")
    assert clock_reads("server/app.py", "from time import perf_counter as tick\ntick()")
    assert clock_reads("server/app.py", "import datetime as dt\ndt.datetime.now(dt.UTC)")
    assert clock_reads("server/app.py", "from datetime import datetime\ndatetime.utcnow()")
    assert clock_reads("server/app.py", "from datetime import date\ndate.today()")
    assert clock_reads("server/app.py", "import time\ntime.gmtime()")
    assert clock_reads("engine/feed.py", "import asyncio\nasyncio.get_running_loop().time()")
    assert clock_reads("engine/feed.py", "def at(self):\n    return self._loop.time()")
    assert clock_reads("engine/feed.py", "def at(loop):\n    return loop.time() + 1")

    assert clock_reads("engine/clock.py", "import time\ntime.monotonic_ns()") == []
    assert clock_reads("server/app.py", "import time\ntime.gmtime(0)\ntime.sleep(1)\nclock.now()") == []


def test_one_object_reads_randomness() -> None:
    """Only engine/ids.py, and the client's own, read randomness."""
    assert every_file(chance_reads) == []

    assert chance_reads("core/decide.py", "import random\nrandom.random()")
    assert chance_reads("core/decide.py", "from random import Random\nRandom(1)")
    assert chance_reads("server/auth.py", "import secrets\nsecrets.token_hex()")
    assert chance_reads("server/auth.py", "import os\nos.urandom(16)")
    assert chance_reads("server/auth.py", "from uuid import uuid4\nuuid4()")

    assert chance_reads("engine/ids.py", "import os\nos.urandom(16)") == []
    assert chance_reads("server/auth.py", "import os, uuid\nos.path\nuuid.UUID(int=1)") == []


def test_no_asserts_in_the_program() -> None:
    """The program keeps its checks under `python -O`."""
    assert every_file(asserts) == []
    assert asserts("core/decide.py", "def f():\n    assert True") == [
        "core/decide.py:2: python -O removes an assert; raise instead"
    ]


def test_functions_stay_short() -> None:
    """No function is longer than 60 lines."""
    assert every_file(long_functions) == []

    assert long_functions("core/x.py", "async def f():\n" + "    1\n" * 60)
    assert long_functions("core/x.py", "def f():\n" + "    1\n" * 59) == []


def test_error_messages_are_sentences() -> None:
    """No text shows an error as Python would write it down."""
    assert every_file(repr_of_an_error) == []

    assert repr_of_an_error("x.py", 'print(f"cannot be read: {error!r}")')
    assert repr_of_an_error("x.py", 'print(f"cannot be read: {error}")') == []


def test_no_unfinished_code() -> None:
    """No file of the package promises work for later."""
    assert every_file(unfinished, "*") == []

    for word in ("TODO", "FIXME", "XXX", "NotImplementedError"):
        assert unfinished("core/x.py", f"a\n# {word}: later"), word
    assert unfinished("core/x.py", "raise NotImplemented\nXXXL = 'todo'") == []


def test_every_module_has_a_docstring() -> None:
    """Every module opens with a docstring."""
    assert every_file(missing_docstring) == []
    assert missing_docstring("core/x.py", "# A comment is not one.\nimport time")


def test_every_test_has_a_docstring() -> None:
    """Every test opens with the sentence it proves."""
    tests = ROOT / "tests"
    assert [
        complaint
        for path in sorted(tests.rglob("test_*.py"))
        for complaint in missing_test_sentence(path.relative_to(tests).as_posix(), _text(path))
    ] == []
    assert missing_test_sentence("test_x.py", "class TestX:\n    async def test_y(self): pass")


def test_exports_are_sorted() -> None:
    """Every `__all__` is one plain list in alphabetical order, without repeats."""
    assert every_file(unsorted_exports) == []

    assert unsorted_exports("core/x.py", "__all__ = ['b', 'a']")
    assert unsorted_exports("core/x.py", "__all__: list[str] = ['a', 'a']")
    assert unsorted_exports("core/x.py", "__all__ = ['a', *others]")
    assert unsorted_exports("core/x.py", "__all__ = names()")
    assert unsorted_exports("core/x.py", "__all__ = ['a']\n__all__ += ['b']")
    assert unsorted_exports("core/x.py", "__all__ = ('A', 'B', 'a')") == []


def test_public_names_load() -> None:
    """Every public name of the package exists, is listed, and nothing else claims to be public."""
    import holdfast

    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    assert set(holdfast._HOMES) == set(holdfast.__all__) - {"__version__"}
    assert not hasattr(holdfast, "no_such_name")


def test_python_holds_no_sql() -> None:
    """SQL lives in .sql files; Python holds pragmas at most."""
    assert every_file(sql_strings) == []

    assert sql_strings("journal/sqlite/journal.py", "run('SELECT 1')")
    assert sql_strings("journal/sqlite/journal.py", "run('''\n    insert or ignore into record values (?)''')")
    assert sql_strings("journal/sqlite/journal.py", "run(f'DELETE FROM {table}')")
    assert sql_strings("journal/sqlite/journal.py", "run('update record set body = ?')")
    assert sql_strings("journal/sqlite/journal.py", "run('create unique index record_name on record (name)')")
    assert sql_strings("journal/sqlite/journal.py", "run('select a, b\\nfrom record ')")

    assert sql_strings("journal/sqlite/journal.py", "'''SELECT is named here only.'''\nrun('PRAGMA synchronous')") == []
    assert sql_strings("cli/token.py", "help='Create a token; delete from any machine; select one, update it.'") == []


def test_locks_have_no_addresses() -> None:
    """No lock says where a package comes from, and every package in it is pinned and hashed."""
    digest = "0" * 64
    paths = [*(ROOT / "requirements").glob("*.txt"), *(ROOT / "examples").glob("*/*/requirements.txt")]
    locks = {path.relative_to(ROOT).as_posix(): _text(path) for path in sorted(paths)}
    assert {"requirements/dev.txt", "requirements/run.txt", "examples/frameworks/crewai/requirements.txt"} <= set(locks)
    for name, text in locks.items():
        assert addresses(name, text) == []
        assert [package for package, version in pins(text).items() if not version] == [], name

    assert addresses("run.txt", "--index-url somewhere")
    assert addresses("run.txt", "--find-links /wheels")
    assert addresses("run.txt", "-f /wheels")
    assert addresses("run.txt", f"a==1 --trusted-host h --hash=sha256:{digest}")
    assert addresses("run.txt", f"a @ file:a.whl --hash=sha256:{digest}")
    assert addresses("run.txt", "# from proto://host/simple")
    assert addresses("run.txt", f"a==1 \\\n    --hash=sha256:{digest}\n    # via -r run.in") == []
    sample = f"# top\na==1 \\\n    --hash=sha256:{digest}\n    # via b\nB>=2\nc==3\n"
    assert pins(sample) == {"a": "1", "b": "", "c": ""}


def test_locks_agree() -> None:
    """The locks share one version of every package, and none forgot a dependency of pyproject.toml."""
    names = ("run", "dev", "bench", "image")
    run, dev, bench, image = (pins(_text(ROOT / "requirements" / f"{name}.txt")) for name in names)
    assert run.items() <= dev.items()
    assert run.items() <= bench.items()
    assert run.items() <= image.items() <= dev.items()
    assert dependencies("postgres") <= {name.replace("-", "_") for name in image}
    assert dependencies() | dependencies("server") <= {name.replace("-", "_") for name in run}


def test_guarantees_name_tests_that_exist() -> None:
    """Every test that the guarantees name is there: a promise points to what shows it."""
    page = (ROOT / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")
    assert not missing_tests(page, ROOT / "tests")
    bad = "`engine/test_engine.py::test_of_nothing`, `nowhere/test_at_all.py`"
    assert missing_tests(bad, ROOT / "tests") == ["engine/test_engine.py::test_of_nothing", "nowhere/test_at_all.py"]


def missing_tests(page: str, tests: Path) -> list[str]:
    missing: list[str] = []
    file = ""
    for path, fact in re.findall(r"`([a-z_/]+\.py)?(?:::(test_\w+))?`", page):
        if not path and not fact:
            continue
        file = path or file
        source = (tests / file).read_text(encoding="utf-8") if (tests / file).is_file() else None
        if source is None or (fact and f"def {fact}(" not in source):
            missing.append(f"{file}::{fact}" if fact else file)
    return missing
