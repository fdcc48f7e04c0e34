"""Keys of servers: those that they accept, the file in which one keeps its own, and who may be served without one."""

from __future__ import annotations

from collections.abc import Iterable
import hashlib
import hmac
import ipaddress
import os
from pathlib import Path
import re
import secrets

from k2jax.errors import UserError

VARIABLE = "K2JAX_API_KEYS"


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the key in a request's headers: ``Authorization: Bearer KEY``, or ``x-api-key: KEY`` as Anthropic has it.

    Args:
        headers: of an ASGI scope, their names in lower case.
    """
    values = dict(reversed(list(headers)))  # the first of a name counts
    scheme, _, key = values.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else values.get(b"x-api-key")


class ApiKeys:
    """The accepted API keys, of which only digests are stored; an empty set accepts every request."""

    def __init__(self, keys: Iterable[str] = ()):
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, key: bytes | None) -> bool:
        """Returns whether a key, as ``given_key`` found it, is accepted.

        All keys are compared in constant time, so that the duration reveals nothing about them.
        """
        if not self._digests:
            return True
        offered = _digest(key or b"")
        return any([hmac.compare_digest(offered, digest) for digest in self._digests])


def kept_key(path: Path) -> str:
    """Returns the key in a file that nobody else on the machine may read; where there is none, a new one is written.

    Raises:
        UserError: the file cannot be read or written, or holds no key.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(24))
        return stored_key(path)
    except OSError as error:
        raise UserError(f"cannot write a key to {path}: {error.strerror}") from None


def stored_key(path: Path) -> str:
    """Returns the key in a file.

    Raises:
        UserError: the file cannot be read, or does not hold one key.
    """
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise UserError(f"cannot read the key in {path}: {reason}") from None
    if len(words) != 1:
        raise UserError(f"{path} holds no key; a server that keeps its key there writes one when the file is deleted")
    return words[0]


def read_keys(file: str | None) -> ApiKeys:
    """Returns the keys of a file, one per line, and of the environment variable, separated by commas or spaces.

    Raises:
        UserError: the file cannot be read, or the file or the variable contains no key. Without this error the server
            would accept every request by mistake.
    """
    keys: list[str] = []
    if file is not None:
        try:
            keys = [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UserError(f"cannot read the API keys in {file}: {reason}") from None
        if not keys:
            raise UserError(f"{file} contains no API key; write one per line")
    if VARIABLE in os.environ:
        variable_keys = [key for key in re.split(r"[,\s]+", os.environ[VARIABLE]) if key]
        if not variable_keys:
            raise UserError(f"{VARIABLE} is set but contains no API key; unset it to serve without keys")
        keys += variable_keys
    return ApiKeys(keys)


def check_exposure(host: str, keys: ApiKeys, allow_unauthenticated: bool) -> None:
    """Raises UserError if a server without keys would be reachable from other machines."""
    if not (keys or allow_unauthenticated or _is_loopback(host)):
        raise UserError(
            f"other machines can reach {host or 'an empty host'}: set --api_keys_file or {VARIABLE}, "
            "or pass --allow_unauthenticated"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
