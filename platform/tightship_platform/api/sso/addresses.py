"""Where the server's part of a login is: pages that need no scope."""

from __future__ import annotations

START = "/login/sso"
"""Sends a browser to the provider."""
CALLBACK = "/login/sso/callback"
"""The browser comes back to it; the only redirect URI that the provider has to know."""
