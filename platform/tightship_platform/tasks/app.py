"""The Celery application: broker, reliability settings, and the schedule of periodic tasks.

Tasks carry keys, never data, and every one may run twice or be lost: the database says what is to be done, and a
periodic sweep starts again what was left. So no result backend is needed, and a broker that is down delays work but
loses none.
"""

from __future__ import annotations

import functools
import logging
import socket
from urllib.parse import urlsplit

from celery import Celery
from celery.exceptions import OperationalError
from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES
from redis.exceptions import RedisError

from tightship_platform.client import request_id
from tightship_platform.database.time_limits import TASK_S
from tightship_platform.errors import Invalid
from tightship_platform.settings import Settings
from tightship_platform.tasks import folder_broker, registry

log = logging.getLogger(__name__)

QUEUE = "tightship"
"""Analyses and plans, each of which may take minutes."""
PERIODIC_QUEUE = "tightship-periodic"
"""What the schedule sends. Every worker keeps a process for it, so that analyses never stand before it."""
ANALYZE_CAPTURE = "tightship_analyzers.analyze_capture"

SOFT_LIMIT_S = 540
"""A task that runs this long is asked to stop …"""
HARD_LIMIT_S = TASK_S
"""… and killed after this long."""
_VISIBILITY_S = 3 * HARD_LIMIT_S
_CONNECT_S = 3
REQUEST_ID = "tightship_request_id"
"""Header of a message: the request that led to it."""
_KNOCK_S = 1
# Under the name of the scheme, by which kombu also knows whether to use TLS.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "tightship_platform.tasks.redis_broker:Transport")


def _broker(settings: Settings) -> dict[str, object]:
    try:
        parts = urlsplit(settings.broker_url)
        scheme, _ = parts.scheme, parts.port
    except ValueError as error:
        raise Invalid("TIGHTSHIP_BROKER_URL", settings.broker_url, f"a URL ({error})") from error
    if scheme == "filesystem":
        return {
            "broker_url": "filesystem://localhost",  # a host name only because kombu warns without one
            "broker_transport": "tightship_platform.tasks.folder_broker:Transport",
            "broker_transport_options": folder_broker.folders(settings.home),
            # Broadcasts would leave files in queues that nobody reads.
            "worker_enable_remote_control": False,
        }
    if scheme in ("redis", "rediss"):
        return {
            "broker_url": settings.broker_url,
            "broker_transport_options": {
                "global_keyprefix": "tightship:",
                "visibility_timeout": _VISIBILITY_S,
                "socket_connect_timeout": _CONNECT_S,
                "socket_timeout": 10,
                "socket_keepalive": True,
                "health_check_interval": 30,
            },
        }
    raise Invalid("TIGHTSHIP_BROKER_URL", settings.broker_url, "filesystem:// or a redis:// or rediss:// URL")


def _beat_schedule() -> dict[str, dict[str, object]]:
    # A periodic task that no worker took within its period is worth nothing: the next one does the same.
    return {
        name: {"task": name, "schedule": period_s, "options": {"expires": period_s, "queue": PERIODIC_QUEUE}}
        for name, period_s in registry.periods_s().items()
    }


@functools.lru_cache(maxsize=8)
def create_celery(settings: Settings) -> Celery:
    """The application for these settings; one per process and settings.

    :raises Invalid: the broker's URL is of another kind, or its folders cannot be made.
    """
    app = Celery("tightship")
    try:
        app.conf.update(_broker(settings))
    except OSError as error:
        raise Invalid("TIGHTSHIP_HOME", str(settings.home), f"a folder that can be written ({error})") from error
    app.conf.update(
        task_default_queue=QUEUE,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # A worker that dies in the middle of a task gives the message back.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        task_soft_time_limit=SOFT_LIMIT_S,
        task_time_limit=HARD_LIMIT_S,
        # On SIGTERM tasks get this long to end; then they are killed and their messages given back.
        worker_soft_shutdown_timeout=3.0,
        worker_lost_wait=2.0,  # for a result of a pool process that is gone: ours keep theirs in the database
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=_CONNECT_S,
        broker_channel_error_retry=True,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        enable_utc=True,
        timezone="UTC",
        beat_schedule=_beat_schedule(),
        beat_enable_remote_control=False,
    )
    app.autodiscover_tasks([known.module for known in registry.registered()], related_name=None)
    return app


def send(settings: Settings, task: str, *args: str | int) -> bool:
    """Queue a task by name; False, with one log line, when the broker cannot be reached (the sweeps make up for it)."""
    try:
        _knock(settings)
        headers = {REQUEST_ID: request_id()} if request_id() else None
        create_celery(settings).send_task(task, args=args, retry=False, headers=headers)
    except (OperationalError, KombuError, OSError) as error:
        log.warning("Broker %s does not take %s now (%s); a sweep will", shown_url(settings.broker_url), task, error)
        return False
    return True


def broker_answers(settings: Settings) -> bool:
    """Whether the broker can be reached now, within a few seconds."""
    try:
        _knock(settings)
        with create_celery(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=_CONNECT_S)
    except (OperationalError, KombuError, OSError):
        return False
    return True


def queue_lengths(settings: Settings) -> dict[str, int]:
    """Queue → messages that wait in it; empty when the broker cannot be reached."""
    app = create_celery(settings)
    try:
        _knock(settings)
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=_CONNECT_S)
            channel = connection.default_channel
            return {queue: int(channel._size(queue)) for queue in (QUEUE, PERIODIC_QUEUE)}
    except (OperationalError, KombuError, RedisError, OSError):
        return {}


def _knock(settings: Settings) -> None:
    """Raise OSError at once when nobody listens at the broker's address, where its client would try for seconds."""
    parts = urlsplit(settings.broker_url)
    if parts.scheme in ("redis", "rediss"):
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=_KNOCK_S).close()


def shown_url(url: str) -> str:
    """A URL without its password, fit for logs and error lines."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)
