"""The same for what is not Python: a filter in the kernel, through which no socket and no process is made.

Libraries in other languages do not tell Python's audit hooks what they do. On Linux a process may give up system calls
for good; one that is given up ends the process by SIGSYS, which the process that watches over it reports.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# Of each kind of machine: what the kernel calls it, and the numbers of the calls that are given up.
MACHINES = {
    "x86_64": (0xC000003E, {"socket": 41, "connect": 42, "fork": 57, "vfork": 58, "execve": 59, "ptrace": 101,
                            "execveat": 322, "io_uring_setup": 425}, 56, 435),
    "aarch64": (0xC00000B7, {"socket": 198, "connect": 203, "execve": 221, "ptrace": 117, "execveat": 281,
                             "io_uring_setup": 425}, 220, 435),
}  # fmt: skip
THREAD = 0x00010000  # the flag of `clone` that makes a thread, which is no process
ALLOW, KILL, NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050000 | 38  # the last: as if the kernel did not know the call
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # offsets in what a filter is given
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


def instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """(operation, how far to jump if so, and if not, number)"""
    name, forbidden, clone, clone3 = MACHINES[machine]
    program = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, name), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for number in forbidden.values():
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, KILL)]
    # A filter cannot see the flags of clone3; where the kernel does not know it, clone is tried next.
    program += [(EQUAL, 0, 1, clone3), (RETURN, 0, 0, NOT_THERE)]
    program += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 1, 0, THREAD), (RETURN, 0, 0, KILL)]
    return [*program, (RETURN, 0, 0, ALLOW)]


def give_up_sockets_and_processes() -> bool:
    """From here on this process makes neither; says whether the system took it."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return False
    program = instructions(platform.machine())
    packed = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    described = ctypes.create_string_buffer(struct.pack("HL", len(program), ctypes.addressof(buffer)))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(library.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(described), 0, 0) == 0)
