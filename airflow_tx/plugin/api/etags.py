"""Answers with an ETag: one who has the answer already is told so, and nothing is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from fastapi import Request, Response, status
from fastapi.routing import APIRoute


class TaggedRoute(APIRoute):
    """A route whose answers have an ETag, and belong to the user who asked."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        answer = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await answer(request)
            # Weak: what is sent may be compressed.
            tag = f'W/"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
            response.headers.update(headers)
            return response

        return tagged
