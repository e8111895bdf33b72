"""The cluster's certificates and kubeconfigs: a fresh authority for each cluster, gone with it."""

import base64
from pathlib import Path

from tests.cluster import children

_DAYS = "3650"


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        _key(self.key)
        _openssl(
            "req", "-x509", "-new", "-key", self.key, "-subj", f"/CN={name}", "-days", _DAYS, "-out", self.certificate
        )

    def issue(self, name: str, subject: str, names: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """A certificate and its key, good for both ends of a connection."""
        certificate, key = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        _key(key)
        _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
        lines = ["keyUsage=digitalSignature,keyEncipherment", "extendedKeyUsage=clientAuth,serverAuth"]
        if names:
            lines.append(f"subjectAltName={','.join(names)}")
        extensions.write_text("\n".join(lines))
        by = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *by, "-days", _DAYS, "-extfile", extensions, "-out", certificate)
        request.unlink()
        extensions.unlink()
        return certificate, key


def signing_keys(directory: Path) -> tuple[Path, Path]:
    """The pair that signs service accounts' tokens: private, public."""
    private, public = directory / "service-accounts.key", directory / "service-accounts.pub"
    _key(private)
    _openssl("ec", "-in", private, "-pubout", "-out", public)
    return private, public


def kubeconfig(path: Path, server: str, authority: Authority, credentials: tuple[Path, Path], name: str) -> Path:
    """Everything is inside the file, so a copy of it works as well."""
    certificate, key = credentials
    path.write_text(f"""\
apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {_inline(authority.certificate)}
users:
- name: {name}
  user:
    client-certificate-data: {_inline(certificate)}
    client-key-data: {_inline(key)}
contexts:
- name: {name}
  context: {{cluster: {name}, user: {name}}}
current-context: {name}
""")
    path.chmod(0o600)
    return path


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _openssl(*arguments: str | Path) -> None:
    children.run("openssl", *arguments)
