"""System calls that no sandbox gets: the ones that reach past namespaces.

AF_VSOCK sockets know no network namespace and lead to the machine's hypervisor; kernel key rings are shared by
user. Everything else is held by the user namespace itself (no capability reaches the machine).
"""

from __future__ import annotations

import errno
import platform

from rock.runtime.local.syscalls import install_seccomp

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_KEYS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
_AF_VSOCK = 40
_LOAD, _EQUAL, _GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000


def filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """BPF instructions (code, jump true, jump false, operand) for `machine` (platform.machine())."""
    no_family, no_call = _ERRNO | errno.EAFNOSUPPORT, _ERRNO | errno.ENOSYS
    keys = _KEYS[machine]
    return [
        (_LOAD, 0, 0, 4),  # architecture
        (_EQUAL, 1, 0, _ARCH[machine]),
        (_RETURN, 0, 0, no_call),  # 32-bit calls have other numbers: none of them
        (_LOAD, 0, 0, 0),  # call number
        (_GREATER_EQUAL, 3, 0, _X32_BIT),
        (_EQUAL, 2, 0, keys[0]),
        (_EQUAL, 1, 0, keys[1]),
        (_EQUAL, 0, 1, keys[2]),
        (_RETURN, 0, 0, no_call),
        (_EQUAL, 0, 3, _SOCKET[machine]),
        (_LOAD, 0, 0, 16),  # first argument: address family
        (_EQUAL, 0, 1, _AF_VSOCK),
        (_RETURN, 0, 0, no_family),
        (_RETURN, 0, 0, _ALLOW),
    ]


def restrict() -> None:
    """Applies the filter to this process and all that it will start. No effect on an unknown architecture."""
    machine = platform.machine()
    if machine in _ARCH:
        install_seccomp(filter_program(machine))
