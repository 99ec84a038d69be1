"""A job's two tokens, derived from the operator's key: nobody has to read a Secret to know them."""

import hmac


def fingerprint(key: bytes) -> str:
    """Which key it is, for names and annotations that anybody may read."""
    return derive(key, "", "fingerprint")[:8]


def derive(key: bytes, uid: str, purpose: str) -> str:
    """Hex of HMAC-SHA256 over the job's uid and the token's purpose."""
    return hmac.new(key, f"{uid}/{purpose}".encode(), "sha256").hexdigest()
