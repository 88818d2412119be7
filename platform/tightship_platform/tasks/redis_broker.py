"""Celery's Redis broker, made safe against a Redis that falls silent.

[Note: Why not kombu's channel as it is]
A consumer has a place for each message that it may hold. kombu gives a place back only once Redis has confirmed that
the message is done. Where Redis does not (it was stopped, restarted or slow), Celery logs a traceback and goes on
without the place: a worker of one process then takes nothing any more, although Redis is back and the worker looks
alive. Here the place is free in any case. Redis hands out the message again after the visibility time-out, and every
task may run twice.
"""

from __future__ import annotations

import logging

from kombu.transport import redis, virtual

log = logging.getLogger(__name__)

_AWAY: tuple[type[Exception], ...] = redis.Transport.connection_errors


class QoS(redis.QoS):  # type: ignore[misc]  # kombu's transports carry no types
    """Counts what a consumer holds; see [Note: Why not kombu's channel as it is]."""

    def ack(self, delivery_tag: str) -> None:
        """Have Redis forget a message that is done."""
        try:
            super().ack(delivery_tag)
        except _AWAY as error:
            self._free(delivery_tag, error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have Redis forget a message, or give it to somebody else."""
        try:
            super().reject(delivery_tag, requeue=requeue)
        except _AWAY as error:
            self._free(delivery_tag, error)

    def _free(self, delivery_tag: str, error: Exception) -> None:
        virtual.QoS.ack(self, delivery_tag)
        log.warning("Redis did not confirm that a task is done (%s); it may run once more", error)


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel with the count above."""

    QoS = QoS


class Transport(redis.Transport):  # type: ignore[misc]
    """kombu's Redis transport with the channel above."""

    Channel = Channel
