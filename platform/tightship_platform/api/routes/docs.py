"""The API's reference as a page. Outside of the API: the gate asks for the scope `read`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tightship_platform import __version__
from tightship_platform.api import reference_page
from tightship_platform.api.openapi import document
from tightship_platform.api.reference import read_reference

router = APIRouter()


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """What `/api/v1/openapi.json` says, to read."""
    reference = read_reference(document(request.app))
    return HTMLResponse(reference_page.draw(reference, __version__), headers=reference_page.HEADERS)
