"""The HTTP API under /api/v1, and the ASGI application that carries it and the dashboard."""
