"""The server's own figures, for Prometheus. Outside of the API: the gate asks for the scope `read`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from tightship_platform.processes.metrics import CONTENT_TYPE, METRICS

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> Response:
    """All figures of this process and of the installation."""
    text = METRICS.render("server", *request.app.state.figures.read())
    return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
