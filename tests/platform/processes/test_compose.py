"""docker-compose.yml and Dockerfile without a container engine: their structure, and the commands they name, which run
here as processes on a real PostgreSQL and a real Redis."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from api_calls import Capture, ok
from processes import Running, answers
from services import find_postgres, free_port
from source_tree import ROOT
from sqlalchemy import create_engine, make_url, text
from waiting import PATIENCE_S, wait_for

OURS = ("server", "worker", "beat", "agent")
SECRETS = {"POSTGRES_PASSWORD": "0123456789abcdef", "TIGHTSHIP_TOKEN": "token-of-the-compose-test"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def fill_in(text: str, environ: dict[str, str]) -> str:
    """Compose's substitution: ${A}, ${A:-default}, ${A:?message}."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if environ.get(name):
            return environ[name]
        if kind == "-":
            return rest
        raise KeyError(f"{name}: {rest}")

    return _VARIABLE.sub(value, text)


def compose(environ: dict[str, str] = SECRETS) -> dict[str, Any]:
    loaded = yaml.safe_load(fill_in((ROOT / "docker-compose.yml").read_text(), environ))
    assert isinstance(loaded, dict)
    return loaded


AGENT: dict[str, Any] = yaml.safe_load(
    fill_in((ROOT / "docker-compose.agent.yml").read_text(), {"TIGHTSHIP_SERVER": "https://h"})
)
SERVICES: dict[str, dict[str, Any]] = compose()["services"] | AGENT["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = {
    match[2]: (match[1], block)
    for block in re.split(r"(?m)^(?=FROM )", DOCKERFILE)
    if (match := re.match(r"FROM (\S+) AS (\S+)", block))
}


# ---- structure -------------------------------------------------------------------------------------------------------


def test_the_services_are_these() -> None:
    """The agent has its own file: its host needs nothing of the server's."""
    assert set(compose()["services"]) == {"postgres", "redis", "server", "worker", "beat"}
    assert set(AGENT["services"]) == {"agent"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)
    assert service["restart"] == "unless-stopped"


def test_volumes_are_named_and_declared() -> None:
    declared = set(compose()["volumes"]) | set(AGENT["volumes"])
    used = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())}
    assert {name for name in used if not name.startswith("/")} == declared
    assert {name for name in used if name.startswith("/")} == {"/tmp", "/run/user"}
    artifacts = {
        name for name, service in SERVICES.items() if "artifacts:/data/artifacts" in service.get("volumes", ())
    }
    assert artifacts == {"server", "worker"}


@pytest.mark.parametrize("missing", SECRETS)
def test_secrets_come_from_the_environment_or_nothing_starts(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        compose({name: value for name, value in SECRETS.items() if name != missing})
    written = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(?i)(password|token|secret):\s*['\"]?[a-z0-9]{6,}", written)


def test_waiting_is_for_what_is_healthy() -> None:
    for name in ("server", "worker", "beat"):
        assert SERVICES[name]["depends_on"] == {
            "postgres": {"condition": "service_healthy"},
            "redis": {"condition": "service_healthy"},
        }


@pytest.mark.parametrize("name", OURS)
def test_every_image_is_a_target_of_the_dockerfile_with_the_same_command(name: str) -> None:
    target = SERVICES[name]["build"]["target"]
    assert target in STAGES
    commands = re.findall(r"(?m)^CMD (\[.*\])$", STAGES[target][1])
    assert [yaml.safe_load(command) for command in commands] == [SERVICES[name]["command"]]


def test_the_stages_build_on_each_other_and_copy_what_exists() -> None:
    for name, (parent, block) in STAGES.items():
        assert parent in STAGES or parent == "${PYTHON_IMAGE}", name
        for source in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", block):
            for path in source.split():
                assert (ROOT / path).exists(), path
        for stage in re.findall(r"from=(\w+)", block):
            assert stage in STAGES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {path for _, block in STAGES.values() for path in re.findall(r"(?m)^COPY (\w+) \./", block)}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied == {path.split("/")[0] for path in (*wheel["packages"], *wheel.get("shared-data", {}))}


REQUIREMENTS = {"server": ("server", "s3", "gcs"), "agent": (), "build": None}
"""File under requirements/ → the extras that it fixes beside the base install; `build` has what makes the wheel."""


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_images_install_what_is_fixed_by_its_hash(name: str) -> None:
    """`make requirements` makes the files again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = REQUIREMENTS[name]
    wanted = project["build-system"]["requires"] if extras is None else list(project["project"]["dependencies"])
    for extra in extras or ():
        wanted += project["project"]["optional-dependencies"][extra]
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = [entry for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]
    fixed = {entry.split("==")[0].split("[")[0].lower(): entry.split("==")[1].split()[0] for entry in entries}
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    for one in wanted:
        bare = re.split(r"[\[<>=!;]", one)[0].strip().lower().replace("_", "-")
        assert bare in fixed, f"{one} is not in requirements/{name}.txt; run `make requirements`"
    if extras is not None:  # tests run with these versions
        tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
        tested = {one.lower().replace("_", "-"): version for one, version in tested.items()}
        assert {one: version for one, version in fixed.items() if one in tested} == {
            one: tested[one] for one in fixed if one in tested
        }
    installs = re.findall(r"pip install [^&\n]*", DOCKERFILE)
    assert all("--require-hashes -r" in one or "--no-deps /wheels/" in one for one in installs), installs
    assert f"--require-hashes -r {name}.txt" in DOCKERFILE


def test_settings_in_the_files_are_settings() -> None:
    from dataclasses import fields

    from tightship_platform.settings import Settings

    known = {f"TIGHTSHIP_{field.name.upper()}" for field in fields(Settings)}
    named = {name for service in SERVICES.values() for name in service.get("environment", {}) if "TIGHTSHIP" in name}
    named |= set(re.findall(r"(TIGHTSHIP_\w+)=", DOCKERFILE))
    assert named
    assert named <= known


def test_every_container_of_ours_is_bounded() -> None:
    for service in (SERVICES[name] for name in OURS):
        assert service["mem_limit"] and service["pids_limit"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for service in SERVICES.values():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


def test_the_agents_own_file_knows_no_secret_of_the_server() -> None:
    written = (ROOT / "docker-compose.agent.yml").read_text()
    assert {name for name, _, _ in _VARIABLE.findall(written)} == {
        "TIGHTSHIP_SERVER", "TIGHTSHIP_AGENT_TOKEN", "PYTHON_IMAGE"
    }  # fmt: skip
    assert set(SERVICES["agent"]["cap_add"]) == {"SYS_PTRACE", "SETUID", "SETGID", "DAC_OVERRIDE"}


def test_only_the_agent_has_rights_beyond_its_own_container() -> None:
    for name in ("server", "worker", "beat"):
        service = SERVICES[name]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert not {"pid", "network_mode", "privileged", "cap_add"} & set(service)
        assert "USER tightship" in STAGES["platform"][1]
    assert SERVICES["agent"]["pid"] == SERVICES["agent"]["network_mode"] == "host"
    assert not SERVICES["agent"].get("privileged")


# ---- the commands, as processes --------------------------------------------------------------------------------------


class Fleet:
    """Starts services of the compose file as processes: the same command and environment, other addresses."""

    def __init__(self, database_url: str, broker_url: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._replaced = {
            "TIGHTSHIP_DATABASE_URL": database_url,
            "TIGHTSHIP_BROKER_URL": broker_url,
            "TIGHTSHIP_ARTIFACTS_URL": str(folder / "artifacts"),
            "TIGHTSHIP_SERVER": self.url,
        }
        self.running: dict[str, Running] = {}

    def environ(self, name: str) -> dict[str, str]:
        """The service's own environment, with addresses of this machine and its own home."""
        service = SERVICES[name]
        own = {key: str(value) for key, value in service.get("environment", {}).items()}
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TIGHTSHIP_")}
        environ |= own | {
            key: value for key, value in self._replaced.items() if key in own or key == "TIGHTSHIP_SERVER"
        }
        environ["TIGHTSHIP_HOME"] = str(self._folder / f"home-{name}")
        environ["TIGHTSHIP_RUNTIME_DIR"] = os.environ["TIGHTSHIP_RUNTIME_DIR"]
        # `tightship` and `python` are those of this environment.
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
        return environ

    def start(self, name: str) -> Running:
        """Run the service's command."""
        command = list(SERVICES[name]["command"])
        if name == "server":
            command += ["--port", str(self.port)]  # the last one counts; 8050 may be taken here
        self.running[name] = Running(self.environ(name), command=command)
        return self.running[name]

    def run(self, name: str, *command: str, given: str = "") -> str:
        """What another command prints in the service's container, given this on its standard input."""
        done = subprocess.run(
            command, env=self.environ(name), input=given, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_healthy(self, name: str) -> bool:
        """Run the service's health check."""
        check = SERVICES[name]["healthcheck"]["test"][1:]
        return subprocess.run(check, env=self.environ(name), capture_output=True, timeout=60).returncode == 0


@pytest.fixture
def fleet(make_database_url: Callable[..., str], redis_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(make_database_url("postgres"), redis_url, tmp_path)
    yield made
    for running in made.running.values():
        running.__exit__()


@pytest.mark.postgres
def test_every_service_comes_up_works_for_the_others_and_goes(fleet: Fleet) -> None:
    for name in OURS:
        assert not fleet.is_healthy(name), f"{name} is said to be healthy before it was started"
    # All at once, on an empty database, as `docker compose up` does.
    for name in ("server", "worker", "beat"):
        fleet.start(name)
    wait_for(lambda: answers(fleet.url), "the server to answer")
    word = fleet.run("server", "tightship", "token", "enrol", os.uname().nodename)
    assert os.uname().nodename in fleet.run("agent", "tightship", "agent", "enrol", given=word)
    assert SECRETS["TIGHTSHIP_TOKEN"] not in fleet.environ("agent").values()
    fleet.start("agent")
    for name in OURS:
        wait_for(lambda name=name: fleet.is_healthy(name), f"the health check of {name}")  # type: ignore[misc]
        assert fleet.running[name].process.poll() is None

    health = httpx.get(
        f"{fleet.url}/api/v1/health",
        headers={"authorization": f"Bearer {SECRETS['TIGHTSHIP_TOKEN']}"},
        trust_env=False,
        timeout=PATIENCE_S,
    ).json()
    assert (health["status"], health["database"], health["broker"]) == ("ok", "ok", "ok")
    assert httpx.get(f"{fleet.url}/api/v1/hosts", trust_env=False, timeout=PATIENCE_S).status_code == 401
    bearer = {"authorization": f"Bearer {SECRETS['TIGHTSHIP_TOKEN']}"}
    with httpx.Client(base_url=f"{fleet.url}/api/v1", headers=bearer, trust_env=False, timeout=PATIENCE_S) as http:
        wait_for(lambda: len(ok(http.get("/hosts"))) == 1, "the agent's heartbeat")
        capture = Capture(http)
        engine = create_engine(make_url(fleet.environ("worker")["TIGHTSHIP_DATABASE_URL"]))
        with engine.begin() as connection:
            connection.execute(text("UPDATE capture SET expires_ns = 1"))
        engine.dispose()
        wait_for(lambda: capture.now()["state"] == "expired", "the worker, driven by beat, to sweep")

    for name in OURS:
        assert fleet.running[name].end() == 0, fleet.running[name].lines
        assert "Traceback" not in fleet.running[name].output()
        assert SECRETS["TIGHTSHIP_TOKEN"] not in fleet.running[name].output()


def test_the_health_check_of_postgres(make_database_url: Callable[..., str]) -> None:
    check = SERVICES["postgres"]["healthcheck"]["test"][1:]
    assert check == ["pg_isready", "-U", "tightship", "-d", "tightship"]
    database = make_url(make_database_url("postgres"))
    ready = find_postgres() / "pg_isready"
    if ready.exists():  # some distributions of PostgreSQL come without it
        environ = os.environ | {"PGHOST": str(database.host), "PGPORT": str(database.port)}
        assert subprocess.run([str(ready), *check[1:]], env=environ, capture_output=True).returncode == 0
        assert subprocess.run([str(ready), *check[1:]], env=environ | {"PGPORT": str(free_port())}).returncode != 0


@pytest.mark.redis
def test_redis_takes_the_options_and_the_health_check_of_the_compose_file(tmp_path: Path) -> None:
    command, check = SERVICES["redis"]["command"], SERVICES["redis"]["healthcheck"]["test"][1:]
    if shutil.which(command[0]) is None or shutil.which(check[0]) is None:
        pytest.skip("no redis-server and redis-cli here")
    port = str(free_port())
    with Running(os.environ, command=[*command, "--port", port, "--dir", str(tmp_path)]) as redis:
        redis.hear("Ready to accept connections")
        answer = subprocess.run([check[0], "-p", port, *check[1:]], capture_output=True, text=True)
        assert answer.stdout.strip() == "PONG"
        assert redis.end() == 0


def test_a_health_check_names_its_part() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tightship_platform.processes.health", "everything"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "server, agent, worker, beat" in result.stderr
