"""ModelService: an OpenAI endpoint inside the sandbox whose answers come from outside.

An agent posts an ordinary chat completion. The service parks the request; a puller that can reach the sandbox (and needs no
open port of its own) fetches it, asks the policy, and posts the answer. ``server`` is the HTTP side, ``request_queue`` the state,
``pull`` the command that the puller may run inside the sandbox, ``proxy`` the pass-through mode with record and replay.
"""

from rock.model_service.messages import ModelRequest, SessionEnd

DEFAULT_PORT = 28080

__all__ = ["DEFAULT_PORT", "ModelRequest", "SessionEnd"]
