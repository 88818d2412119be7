"""A private authority and the certificates that it signs, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A private authority; its files lie in one folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """What clients have to trust."""
        return self.folder / "ca.pem"

    def sign(self, name: str, *alternatives: str, password: str = "") -> tuple[Path, Path]:
        """A certificate for these names (`DNS:…`, `IP:…`) and its key."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        signed_by = ["-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key")]
        secret = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        _make(certificate, key, *signed_by, *secret, "-addext", f"subjectAltName={','.join(alternatives)}")
        return certificate, key


def make_authority(folder: Path) -> Authority:
    """One that nobody trusts yet."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Authority(folder)
    _make(made.certificate, folder / "ca.key", "-nodes", "-addext", "keyUsage=critical,keyCertSign")
    return made


def _make(certificate: Path, key: Path, *more: str) -> None:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *files, "-days", "2", "-subj", f"/CN={certificate.stem}", *more],
        check=True,
        capture_output=True,
    )
