"""Who a credential belongs to, from its own claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._auth import ExchangedToken
from ._jwt import claims, looks_like_jwt
from .types.session import WhoamiResponse

if TYPE_CHECKING:
    from ._holder import Holder


async def whoami(holder: Holder) -> WhoamiResponse:
    """Raises RuntimeError if the credential does not say whose it is."""
    await holder.connect()
    token = await holder.credential.token()
    payload = claims(token)
    if not isinstance(holder.credential, ExchangedToken) and not (
        looks_like_jwt(token) and str(payload.get("iss", "")).startswith("passport-")
    ):
        raise RuntimeError("whoami needs a token that names its user; this server works with plain API keys")
    try:
        return WhoamiResponse(
            user_urn=payload["sub"],
            org_urn=f"tml:organization:{payload['org_id']}",
            email=payload.get("email"),
        )
    except KeyError as error:
        raise RuntimeError(f"the token of this server has no claim {error}") from error
