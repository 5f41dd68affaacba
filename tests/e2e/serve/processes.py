"""What Linux says of processes: their children, sockets, files and threads."""

import os
import re


def children_of(pid):
    """The process and all its descendants, as process ids."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
                for child in map(int, f.read().split()):
                    found += [child, *children_of(child)]
        except FileNotFoundError:
            pass
    return found


def ranks_of(server, n):
    """Process ids of the n local workers in rank order, found by the sockets where they listen."""
    with open("/proc/net/unix", encoding="utf-8") as f:
        lines = [line.split() for line in f]
    listeners = {int(line[6]): line[7] for line in lines[1:] if len(line) == 8 and int(line[3], 16) & 0x10000}
    found = {}
    for pid in children_of(server.process.pid):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
            path = inode and re.search(r"/octavo-\w+/(\d+)$", listeners.get(int(inode.group(1)), ""))
            if path:
                found[int(path.group(1))] = pid
    return [found[i] for i in range(n)]


def listens_at(pid):
    """The IPv4 addresses, as the kernel writes them, at which a process listens."""
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as f:
        lines = [line.split() for line in f][1:]
    listeners = {line[9]: line[1].split(":")[0] for line in lines if line[3] == "0A"}
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
        if inode and inode.group(1) in listeners:
            found.add(listeners[inode.group(1)])
    return found


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def n_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def n_threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))
