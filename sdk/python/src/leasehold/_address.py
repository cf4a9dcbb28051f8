"""Where the server is, and the credentials for it: from arguments, the environment and files."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from .errors import InvalidArgument

USER_AGENT: Final = "leasehold-python/0.1.0"


@dataclass(frozen=True)
class Address:
    """The address of a server."""

    host: str
    port: int
    #: What stands before ``/v1/`` in the paths; empty, or beginning with a slash.
    base: str
    #: The headers of every request. They hold the token.
    head: str = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)


def resolve(
    url: str | None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> Address:
    """Find the address. An argument overrides the URL's own option, which overrides the environment."""
    if url is None:
        url = os.environ.get("LEASEHOLD_URL")
        if not url:
            raise InvalidArgument("there is no server: pass `url`, or set LEASEHOLD_URL to http://HOST:PORT")
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _bad("it cannot be parsed") from None
    if parts.scheme not in ("http", "https"):
        raise _bad("the scheme must be http or https; start `leasehold serve` for other stores")
    if "@" in parts.netloc:
        raise _bad("it must not contain a token or a password; pass `token_file`, or set LEASEHOLD_TOKEN_FILE")
    if not host or ("[" in parts.netloc and not _is_ipv6(host)):
        raise _bad("there is no host")
    if any(character.isspace() or not character.isprintable() for character in url.strip()):
        raise _bad("it has characters that are not allowed")
    secure = parts.scheme == "https"
    options = _query(parts.query)
    token = _token(token, token_file, options.get("token_file"))
    files = [
        _text(given) or options.get(name) or (os.environ.get(variable) if secure else None) or None
        for name, given, variable in (
            ("ca", ca, "LEASEHOLD_CACERT"),
            ("cert", cert, "LEASEHOLD_CERT"),
            ("key", key, "LEASEHOLD_KEY"),
        )
    ]
    if not secure and any(files):
        raise InvalidArgument("`ca`, `cert` and `key` are for TLS; write https: in the URL")
    port = port or (443 if secure else 80)
    shown = f"[{host}]" if _is_ipv6(host) else host
    try:
        shown.encode("ascii")
        base = parts.path.rstrip("/")
        base.encode("ascii")
    except UnicodeEncodeError:
        raise _bad("write other than ASCII characters in their encoded form") from None
    head = f"Host: {shown}:{port}\r\nUser-Agent: {USER_AGENT}\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n"
    return Address(host, port, base, head, _context(*files) if secure else None)


def _bad(why: str) -> InvalidArgument:
    return InvalidArgument(f"the URL of a server is http://HOST:PORT: {why}")


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.split("%")[0]).version == 6
    except ValueError:
        return False


def _query(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if options.keys() - {"token_file", "ca", "cert", "key"}:
        raise _bad("unknown option; the options are `token_file`, `ca`, `cert` and `key`")
    return options


def _token(
    given: str | None,
    given_file: str | os.PathLike[str] | None,
    file: str | None,
) -> str | None:
    """Find the token: the arguments first, then the URL's file, then the environment."""
    if given is not None and given_file is not None:
        raise InvalidArgument("pass `token` or `token_file`, not both")
    token, source = given, "`token`"
    if token is None:
        file = _text(given_file) or file
        source = "the file of `token_file`"
        if file is None:
            token, source = os.environ.get("LEASEHOLD_TOKEN") or None, "LEASEHOLD_TOKEN"
            if token is None:
                file, source = os.environ.get("LEASEHOLD_TOKEN_FILE") or None, "the file of LEASEHOLD_TOKEN_FILE"
        if token is None and file is not None:
            try:
                with open(file, encoding="utf-8") as opened:
                    token = opened.read()
            except (OSError, UnicodeDecodeError) as error:
                # The file's path is not secret; what it holds is.
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise InvalidArgument(f"cannot read {source}: {why}") from None
    if token is None:
        return None
    token = token.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise InvalidArgument(f"{source} must hold one token: ASCII characters without spaces")
    return token


def _context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    if (cert is None) != (key is None):
        raise InvalidArgument("`cert` and `key` must be given together")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError):
        raise InvalidArgument("cannot read the authority of `ca`: it must be a file in PEM") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ssl.SSLError, InvalidArgument):
            why = "they must be files in PEM that belong together, the key without a password"
            raise InvalidArgument(f"cannot read `cert` and `key`: {why}") from None
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask the terminal.
    raise InvalidArgument("the key has a password")
