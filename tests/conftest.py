"""What all tests share: real databases and brokers, and a separate environment.

Fixtures
- `platform_env`: a clean, migrated database, a broker, a home and a runtime folder for one test, as `PlatformEnv`
  (`.settings`, `.environ` for child processes, `.home`); the same values stand in this process's environment.
- `make_platform_env()`: the same made by hand, for fixtures of a wider scope; it touches no environment variable.
- `database`: an open, migrated `Database`; the test runs once on SQLite and once on PostgreSQL.
- `database_url`: as text, and empty: no schema yet; runs on both.
- `broker_url`: a Celery broker URL; the test runs once on folders and once on Redis.
- `make_database_url(kind, migrated)`: any number of databases; kind is `sqlite`, `postgres` or `default`.
- `postgres_url`, `redis_url`: one empty database of each for the whole session.

`platform_env` uses SQLite and folders, or the PostgreSQL of `TIGHTSHIP_DATABASE_URL` and the Redis of
`TIGHTSHIP_BROKER_URL` when the test run has them in its environment: each test gets its own database there.
Tests that use PostgreSQL or Redis are marked `postgres` and `redis` by themselves. With `TIGHTSHIP_REQUIRE_ALL=1` a
skipped test of the marks postgres, redis, browser, torch or prometheus is a failed one.

A run of everything (no path, no `-m`) takes some of the costly files, see file_costs.py, and what runs on each kind
of database or broker does so on one of them by chance. Of the cases of a test marked `sliced(n)`, n are drawn, and of
those of all tests of a file that are marked `sliced(n, of="theme")` with one theme n together. `make explore` runs all.
The same number in `TIGHTSHIP_SLICE`, which stands in the head of the run, draws the same ones.

Tests marked `reference` need the reference data, whose folder `TIGHTSHIP_REFERENCE` names. Unset, they are deselected;
where it names no folder they fail.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import file_costs
import hypothesis
import pytest
import reference_data
import services
from examples import EXPLORE, USUAL, tried
from sqlalchemy import create_engine, make_url, text

from tightship_platform.database import engine as databases
from tightship_platform.database.models import Base
from tightship_platform.settings import Settings, load_settings

# In the background of a shell, or under nohup, these are ignored, and every child inherits that: jobs that tests end by
# a signal would go on.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# As in the Makefile: child processes that find their modules compiled start sooner.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Test processes share the cores; threads of torch that spin for one another would take them from the rest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no defect, hence no deadline. The same examples every time, so that a change is what turns a test
# red; `make explore` looks for new ones.
hypothesis.settings.register_profile("tightship", max_examples=tried(USUAL), deadline=None, derandomize=not EXPLORE)
hypothesis.settings.load_profile("tightship")

SLICE = os.environ.setdefault("TIGHTSHIP_SLICE", str(random.SystemRandom().randrange(10**6)))
"""Draws the slices of this run; set before parallel test processes start, which have to draw the same."""

GIVEN_DATABASE = os.environ.get("TIGHTSHIP_DATABASE_URL", "")
GIVEN_BROKER = os.environ.get("TIGHTSHIP_BROKER_URL", "")
COSTS = os.environ.get("TIGHTSHIP_TEST_COSTS")
REQUIRE_ALL = os.environ.get("TIGHTSHIP_REQUIRE_ALL") == "1"
REQUIRED_MARKS = ("postgres", "redis", "browser", "torch", "prometheus")
RUN_OF_EVERYTHING = "TIGHTSHIP_RUN_OF_EVERYTHING"
"""Set by the first process of a run that names no file, for those of xdist."""
SERVERS = {"database", "database_url", "broker_url"}
"""Fixtures with which a test runs once on each kind of server."""
NOWHERE = "http://127.0.0.1:9"
"""A server address where nothing listens: no test may reach a tightship that happens to run on this machine."""

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
REDIS = pytest.param("redis", marks=pytest.mark.redis)


# ---- what runs, and skips that are failures --------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Count what files cost, and leave costly ones out of a run of everything; see file_costs."""
    if COSTS:
        config.pluginmanager.register(file_costs.FileCosts(Path(COSTS)))
    if not hasattr(config, "workerinput"):  # processes of xdist do as the first
        everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr
        drawn = everything and not EXPLORE and not getattr(config.option, "lf", False)
        os.environ.pop(RUN_OF_EVERYTHING, None)
        if drawn:
            os.environ[RUN_OF_EVERYTHING] = "1"


@cache
def _left_out(root: Path) -> set[Path]:
    names = file_costs.left_out(file_costs.known(), SLICE) if RUN_OF_EVERYTHING in os.environ else ()
    return {root / name for name in names}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that was not drawn is not even imported."""
    return True if collection_path in _left_out(config.rootpath) else None


def pytest_report_header(config: pytest.Config) -> str:
    """With what number this run can be drawn again."""
    return f"drawn by TIGHTSHIP_SLICE={SLICE}: {len(_left_out(config.rootpath))} costly files are left out"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting imports stays to the end: looked through for garbage again and again, it takes as long again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _sliced_away(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases of sliced tests that were not drawn: what runs on each database and broker does so on one of them."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if RUN_OF_EVERYTHING in os.environ and (servers := sorted(SERVERS & params.keys())):
            case = item.nodeid.replace(str(params[servers[0]]), "")
            cases.setdefault((case, 1), []).append(item)
        elif marker := item.get_closest_marker("sliced"):
            test = item.nodeid.partition("[")[0]
            theme = marker.kwargs.get("of")
            name = test if theme is None else f"{test.partition('::')[0]} {theme}"
            cases.setdefault((name, marker.args[0]), []).append(item)
    for (name, count), alike in cases.items():
        drawn = random.Random(f"{SLICE} {name}").sample(alike, min(count, len(alike)))
        yield from (item for item in alike if item not in drawn)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs reference data when no folder is given, and what no slice drew; mark what uses PostgreSQL or
    Redis."""
    left_out = set() if reference_data.GIVEN else {item for item in items if item.get_closest_marker("reference")}
    if not EXPLORE and not getattr(config.option, "lf", False):  # whatever failed has to run once more
        left_out |= set(_sliced_away(items))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        general = bool(names & {"platform_env", "make_platform_env"})
        if "postgres_url" in names or (general and GIVEN_DATABASE.startswith("postgres")):
            item.add_marker(pytest.mark.postgres)
        if "redis_url" in names or (general and GIVEN_BROKER.startswith("redis")):
            item.add_marker(pytest.mark.redis)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a reference test when its folder is missing, even one that is parametrized by the files in it."""
    if item.get_closest_marker("reference") and not reference_data.FOLDER.is_dir():
        pytest.fail(
            f"TIGHTSHIP_REFERENCE is {reference_data.GIVEN!r}, which is not a folder; "
            "name the folder of the reference data, or unset the variable to leave these tests out",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A required test that was skipped has failed; with the folder given, a reference test is required."""
    report: Any = yield
    required = {mark: "TIGHTSHIP_REQUIRE_ALL=1" for mark in REQUIRED_MARKS if REQUIRE_ALL}
    required["reference"] = f"TIGHTSHIP_REFERENCE={reference_data.GIVEN}"
    marks = [mark for mark in required if item.get_closest_marker(mark)]
    if report.skipped and marks and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} ({', '.join(marks)}) was skipped with {required[marks[0]]}: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A whole file that skips itself for want of a required part has failed too."""
    report: Any = yield
    why = str(report.longrepr)
    if REQUIRE_ALL and report.outcome == "skipped" and any(w in why for w in (*REQUIRED_MARKS, "playwright", "chrom")):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped with TIGHTSHIP_REQUIRE_ALL=1: {why}"
    return report


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Our own order where whole files are given to processes; see file_schedule.py."""
    from file_schedule import FileSchedule

    return FileSchedule(config, log) if config.getoption("dist") == "loadfile" else None


# ---- servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _session_stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def _postgres_admin(_session_stack: ExitStack) -> Callable[[], str]:
    """Returns the URL of a database from which others may be created; starts a server at the first call."""
    known: list[str] = [GIVEN_DATABASE] if GIVEN_DATABASE.startswith("postgres") else []

    def admin() -> str:
        if not known:
            try:
                known.append(_session_stack.enter_context(services.postgres_server()))
            except services.Unavailable as why:
                pytest.skip(str(why))
        return known[0]

    return admin


@pytest.fixture(scope="session")
def make_database_url(
    _postgres_admin: Callable[[], str], _session_stack: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Makes databases: `make_database_url("postgres", migrated=True)` → URL of one that nobody else uses."""
    templates: dict[str, str] = {}

    def make(kind: str = "default", *, migrated: bool = False) -> str:
        if kind == "default":
            kind = "postgres" if GIVEN_DATABASE.startswith("postgres") else "sqlite"
        if migrated and kind not in templates:
            url = make(kind)
            databases.upgrade(Settings(home=tmp_path_factory.mktemp("template"), database_url=url))
            templates[kind] = url
        template = templates[kind] if migrated else None
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("sqlite") / "tightship.db"
            if template:
                shutil.copyfile(str(make_url(template).database), path)
            return f"sqlite:///{path}"
        name = f"tightship_test_{uuid.uuid4().hex}"
        source = f' TEMPLATE "{make_url(template).database}"' if template else ""
        _execute(_postgres_admin(), f'CREATE DATABASE "{name}"{source}')
        if GIVEN_DATABASE:  # our own server goes with all that is on it
            _session_stack.callback(_execute, _postgres_admin(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        return make_url(_postgres_admin()).set(database=name).render_as_string(hide_password=False)

    return make


def _execute(url: str, statement: str) -> None:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def _make_redis_url(_session_stack: ExitStack) -> Callable[[], str]:
    """Makes Redis URLs with their own database number, emptied."""
    known: list[str] = [GIVEN_BROKER] if GIVEN_BROKER.startswith("redis") else []
    numbers: list[Iterator[int]] = []

    def make() -> str:
        import redis

        if not known:
            try:
                known.append(_session_stack.enter_context(services.redis_server()))
            except services.Unavailable as why:
                pytest.skip(str(why))
        base = make_url(known[0])
        if not numbers:
            with redis.Redis.from_url(known[0]) as client:
                count = int(client.config_get("databases")["databases"])  # type: ignore[index]
            # Number 0 and the given one may hold somebody's data. Parallel test processes take turns on one server.
            worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
            workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
            free = [number for number in range(1, count) if str(number) != base.database]
            numbers.append(itertools.cycle(free[worker::workers]))
        url = base.set(database=str(next(numbers[0]))).render_as_string(hide_password=False)
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        return url

    return make


@pytest.fixture(scope="session")
def postgres_url(make_database_url: Callable[..., str]) -> str:
    """An empty PostgreSQL database for the session."""
    return make_database_url("postgres")


@pytest.fixture(scope="session")
def redis_url(_make_redis_url: Callable[[], str]) -> str:
    """An empty Redis database for the session."""
    return _make_redis_url()


@pytest.fixture(params=["sqlite", POSTGRES])
def database_url(request: pytest.FixtureRequest, make_database_url: Callable[..., str]) -> str:
    """An empty database for this test, once of each kind."""
    return make_database_url(request.param)


@pytest.fixture(scope="session")
def _emptied_database(
    make_database_url: Callable[..., str], _session_stack: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], databases.Database]:
    """One migrated database of each kind for the session, without rows at every call."""
    opened: dict[str, databases.Database] = {}

    def empty(kind: str) -> databases.Database:
        if kind not in opened:
            url = make_database_url(kind, migrated=True)
            settings = Settings(home=tmp_path_factory.mktemp("home"), database_url=url)
            opened[kind] = _session_stack.enter_context(databases.open_database(settings))
        tables = [table.name for table in reversed(Base.metadata.sorted_tables)]
        with opened[kind].session() as session:
            if kind == "postgres":  # TRUNCATE would make all their files again, at ten times the cost
                session.execute(text("SET LOCAL lock_timeout = '20s'"))
                with_rows = " UNION ALL ".join(
                    f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in tables
                )
                full = set(session.execute(text(with_rows)).scalars())
                tables = [table for table in tables if table in full]
                session.execute(
                    text(
                        "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) "
                        "FROM pg_sequences WHERE last_value IS NOT NULL"
                    )
                )
            for table in tables:
                session.execute(text(f"DELETE FROM {table}"))
        return opened[kind]

    return empty


@pytest.fixture(params=["sqlite", POSTGRES])
def database(
    request: pytest.FixtureRequest, _emptied_database: Callable[[str], databases.Database]
) -> databases.Database:
    """An open database with the schema and no rows, once of each kind."""
    return _emptied_database(request.param)


@pytest.fixture(params=["folder", REDIS])
def broker_url(request: pytest.FixtureRequest, _make_redis_url: Callable[[], str]) -> str:
    """A Celery broker for this test, once of each kind."""
    return _make_redis_url() if request.param == "redis" else "filesystem://"


# ---- a platform for a test -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlatformEnv:
    """Where a test's platform lives; nothing is started yet."""

    home: Path
    runtime_dir: Path
    database_url: str
    broker_url: str

    @property
    def variables(self) -> dict[str, str]:
        """The TIGHTSHIP_ variables that say so. The server address is one where nothing listens, and agents leave the
        jobs of other tests alone."""
        return {
            "TIGHTSHIP_HOME": str(self.home),
            "TIGHTSHIP_RUNTIME_DIR": str(self.runtime_dir),
            "TIGHTSHIP_DATABASE_URL": self.database_url,
            "TIGHTSHIP_BROKER_URL": self.broker_url,
            "TIGHTSHIP_SERVER": NOWHERE,
            "TIGHTSHIP_AGENT_RUNS": "launched",
        }

    @property
    def environ(self) -> dict[str, str]:
        """A whole environment for child processes."""
        return {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")} | self.variables

    @property
    def settings(self) -> Settings:
        """The settings that a process with `environ` loads."""
        return load_settings(self.environ)


@pytest.fixture(scope="session")
def make_platform_env(
    make_database_url: Callable[..., str],
    _make_redis_url: Callable[[], str],
    _session_stack: ExitStack,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., PlatformEnv]:
    """`make_platform_env(database="default", broker="default", migrated=True)` → PlatformEnv."""

    def make(*, database: str = "default", broker: str = "default", migrated: bool = True) -> PlatformEnv:
        if broker == "default":
            broker = "redis" if GIVEN_BROKER.startswith("redis") else "folder"
        runtime_dir = Path(f"/tmp/tst-{uuid.uuid4().hex[:12]}")  # short: sockets live in it
        _session_stack.callback(shutil.rmtree, runtime_dir, ignore_errors=True)
        return PlatformEnv(
            home=tmp_path_factory.mktemp("home"),
            runtime_dir=runtime_dir,
            database_url=make_database_url(database, migrated=migrated),
            broker_url=_make_redis_url() if broker == "redis" else "filesystem://",
        )

    return make


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees, or touches, the tightship of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("TIGHTSHIP_")]:
        monkeypatch.delenv(name)
    base = tmp_path_factory.getbasetemp()
    runtime_dir = Path(f"/tmp/tst-{uuid.uuid4().hex[:12]}")
    monkeypatch.setenv("TIGHTSHIP_HOME", str(base / f"home-{uuid.uuid4().hex[:12]}"))
    monkeypatch.setenv("TIGHTSHIP_RUNTIME_DIR", str(runtime_dir))
    monkeypatch.setenv("TIGHTSHIP_SERVER", NOWHERE)
    monkeypatch.setenv("TIGHTSHIP_AGENT_RUNS", "launched")
    yield
    shutil.rmtree(runtime_dir, ignore_errors=True)


@pytest.fixture
def platform_env(
    make_platform_env: Callable[..., PlatformEnv], monkeypatch: pytest.MonkeyPatch, _own_environment: None
) -> PlatformEnv:
    """A clean platform for this test; its variables are set in this process."""
    env = make_platform_env()
    for name, value in env.variables.items():
        monkeypatch.setenv(name, value)
    return env
