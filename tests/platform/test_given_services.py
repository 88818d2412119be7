"""The test run itself: given a PostgreSQL and a Redis by environment, the general fixtures use those."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from tightship_platform.database.engine import open_database
from tightship_platform.settings import load_settings

TESTS = Path(__file__).parents[1]
USING = """
import os
from tightship_platform.database.engine import open_database
from tightship_platform.settings import load_settings

def test_platform(platform_env, make_platform_env):
    other = make_platform_env()
    assert len({platform_env.database_url, other.database_url, os.environ["GIVEN_DATABASE"]}) == 3
    assert len({platform_env.broker_url, other.broker_url, os.environ["GIVEN_BROKER"]}) == 3
    assert platform_env.database_url.startswith("postgresql+psycopg://")
    assert platform_env.broker_url.startswith("redis://")
    print(platform_env.database_url, other.database_url)
    assert load_settings() == platform_env.settings
    with open_database(load_settings()) as database:
        assert database.dialect == "postgresql"
"""


def _databases(url: str) -> set[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        names = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
    engine.dispose()
    return names


def test_given_servers_are_used_and_left_as_they_were(postgres_url: str, redis_url: str, tmp_path: Path) -> None:
    for file in (
        TESTS / "conftest.py",
        *(TESTS / "support" / f"{name}.py" for name in ("reference_data", "services", "file_costs", "examples")),
    ):
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "test_it.py").write_text(USING)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    postgres: x\n    redis: x\n")
    given = {"TIGHTSHIP_DATABASE_URL": postgres_url, "TIGHTSHIP_BROKER_URL": redis_url, "TIGHTSHIP_REQUIRE_ALL": "1"}
    reported = {"GIVEN_DATABASE": postgres_url, "GIVEN_BROKER": redis_url}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qs",
        "-p",
        "no:cacheprovider",
        "-c",
        tmp_path / "pytest.ini",
        "test_it.py",
    ]
    result = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **given, **reported}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout
    used = {make_url(word).database for word in result.stdout.split() if word.startswith("postgresql+psycopg://")}
    assert len(used) == 2
    assert not used & _databases(postgres_url)  # other tests have theirs beside


def test_a_platform_of_ones_own(platform_env) -> None:
    settings = load_settings()
    assert settings == platform_env.settings
    assert settings.home == platform_env.home
    assert len(str(settings.runtime_dir)) < 30
    with open_database(settings) as database:
        assert database.schema_version() is not None
    url = make_url(settings.database_url)
    assert url.get_backend_name() in ("sqlite", "postgresql")


def test_nothing_of_the_caller_is_seen() -> None:
    assert {name for name in os.environ if name.startswith("TIGHTSHIP_")} == {
        "TIGHTSHIP_HOME",
        "TIGHTSHIP_RUNTIME_DIR",
        "TIGHTSHIP_SERVER",
        "TIGHTSHIP_AGENT_RUNS",
    }
