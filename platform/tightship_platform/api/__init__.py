"""The HTTP API under /api/v1, and the ASGI application that carries it and the dashboard."""

from tightship_platform.api.app import create_app

__all__ = ["create_app"]
