"""Run one program, and end all that it has started: when it ends, and when whoever asked for it goes away.

Started by path, without the package: `supervisor.py FD FOLDER COMMAND...`. FD is the end of a pipe that nothing is ever
written to. Once its other end is closed, by hand or by the death of its owner, everything below this process is killed,
what has left the program's process group included, and FOLDER is removed.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl.h
KILL_TIMEOUT_S = 10.0
MAX_FILE_BYTES = 1 << 30
MARK = "RLLM_GYM_PROGRAM"  # a variable of all that a program starts, with the name of its folder


def processes_below(root):
    """Return the ids of all processes that descend from one, as Linux's /proc has them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):  # it has ended
                continue
            children.setdefault(parent, []).append(int(name))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def left_below():
    """Reap what has ended of this process's descendants, and return the rest; orphans have become its children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return processes_below(os.getpid())


def kill_all(find):
    """Kill all processes whose ids a function returns, until it returns none."""
    end_s = time.monotonic() + KILL_TIMEOUT_S
    while (found := find()) and time.monotonic() < end_s:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # what stands still forks no more
            for pid in found:
                with contextlib.suppress(OSError):  # it has ended, or has another user's rights
                    os.kill(pid, number)
        time.sleep(0.005)


def remove_folder(folder):
    """Remove a folder, also where it has some that nobody may write to, as a module cache of Go's has.

    Folders in folders come up to the top first: of thousands, each in the one before, no path would be short enough.
    """
    mark, folders = os.urandom(8).hex(), [folder]
    for path in folders:  # which grow
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for k, (inner, is_folder) in enumerate(found):
                with contextlib.suppress(OSError):
                    if is_folder:
                        os.chmod(inner, 0o700)  # else it cannot be moved
                        folders.append(os.path.join(folder, f"{mark}-{len(folders)}-{k}"))
                        os.rename(inner, folders[-1])
                    else:
                        os.unlink(inner)
    for path in reversed(folders):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def begin_program():
    """End with the supervisor, and write no file that is larger than the folder may be, removed or not."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = MAX_FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def supervise(owner, folder, start):
    """Return the exit code of a program, or 0 where the owner of its pipe has gone; nothing below is left of either.

    Args:
        owner: the end of the pipe.
        folder: of the program.
        start: starts it and returns its id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = start()
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([owner, ended], [], [])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended in ready else 0
    kill_all(left_below)
    if owner in ready:
        remove_folder(folder)
    return code if code >= 0 else 128 - code


def main():
    owner, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]

    def start():
        return subprocess.Popen(command, process_group=0, preexec_fn=begin_program).pid

    try:
        code = supervise(owner, folder, start)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr, flush=True)
        code = 127
    sys.exit(code)


if __name__ == "__main__":
    main()
