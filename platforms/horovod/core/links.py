"""Rank 0's connections to all other ranks: made once, watched until the job ends."""

import collections
import os
import socket
import threading
import time

from . import meeting, wire
from .errors import RankLost
from .requests import listed

HELLO = 10.0  # seconds that a new connection has to prove which rank it is
STRANGERS = 64  # connections that may be doing so at the same time


def gather(board, members, timeout):
    """On the first rank: wait for the others.

    Returns:
        ({rank: Channel}, {rank: its first message}, secret), by the numbers in `members`.

    Raises:
        RankLost: not all came within `timeout` seconds; the text names the missing ones.
    """
    channels, hellos, lock = {}, {}, threading.Condition()
    wanted, deadline = set(members[1:]), time.monotonic() + timeout
    strangers = collections.deque()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, secret = meeting.address(len(members)), os.urandom(32)
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]

        def meet(sock):
            channel = _introduced(sock, secret, members, wanted)
            with lock:
                if sock in strangers:
                    strangers.remove(sock)
            if channel:
                channel, hello = channel
                with lock:
                    if hello["rank"] in channels:
                        channel.close()
                        return
                    channels[hello["rank"]], hellos[hello["rank"]] = channel, hello
                    lock.notify_all()

        def listen():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:  # closed, because all ranks are here or the time is up
                    return
                with lock:
                    strangers.append(sock)
                    oldest = strangers.popleft() if len(strangers) > STRANGERS else None
                if oldest:  # not a rank: ranks introduce themselves at once
                    wire.hang_up(oldest)
                threading.Thread(target=meet, args=(sock,), daemon=True, name="hvd-meet").start()

        threading.Thread(target=listen, daemon=True, name="hvd-listen").start()
        board.put({"host": host, "port": port, "secret": secret.hex()})
        try:
            with lock:
                lock.wait_for(lambda: len(channels) == len(wanted), deadline - time.monotonic())
        finally:
            board.remove()
            wire.hang_up(listener)
    missing = sorted(wanted - set(channels))
    if missing:
        why = (
            f"{listed(missing)} of {len(members)} did not come within {timeout:g} s (HOROVOD_START_TIMEOUT); "
            f"{listed([members[0], *sorted(channels)])} came. Does every rank call hvd.init(), with the same arguments?"
        )
        for channel in channels.values():
            tell(channel, {"refused": why})
            channel.close()
        raise RankLost(why)
    return channels, hellos, secret


def _introduced(sock, secret, members, wanted):
    """(Channel, first message) of a rank, or None for any other connection."""
    try:
        sock.settimeout(HELLO)
        wire.tune(sock)
        channel = wire.greet(sock, secret)
        hello = channel.receive(wire.SMALL)
        if hello["rank"] in wanted and hello["members"] == members:
            return channel, hello
        here = f"rank {hello['rank']} wants to meet {hello['members']}, the first rank {members}"
        tell(channel, {"refused": f"the ranks disagree about who is left: {here}"})
    except (OSError, KeyError, TypeError, ValueError):
        pass
    wire.hang_up(sock)
    return None


def tell(channel, message):
    """Send, if the other end is still there."""
    try:
        channel.send(message)
    except OSError:
        pass  # whoever watches the connection notices it


def join(board, rank, members, about, timeout):
    """On every other rank: connect to the first rank.

    Returns:
        (Channel, the first rank's answer, secret).

    Raises:
        RankLost: the first rank could not be reached within `timeout` seconds, or refuses this one.
    """
    deadline, last = time.monotonic() + timeout, "it has not published its address"
    while time.monotonic() < deadline:
        notice = board.get(deadline - time.monotonic())
        if notice is None:
            continue
        try:
            secret = bytes.fromhex(notice["secret"])
            channel = wire.connect((notice["host"], notice["port"]), secret, HELLO)
            channel.send({**about, "rank": rank, "members": members})
            channel.settimeout(max(0.1, deadline - time.monotonic()) + 2)  # the first rank gives up before this one
            welcome = channel.receive()
        except OSError as error:  # the notice was left behind by an earlier job
            last = str(error)
            time.sleep(0.02)
            continue
        if "refused" in welcome:
            raise RankLost(welcome["refused"])
        channel.settimeout(None)
        return channel, welcome, secret
    raise RankLost(
        f"rank {rank} did not find rank {members[0]} within {timeout:g} s (HOROVOD_START_TIMEOUT): {last}. "
        f"All {len(members)} ranks have to call hvd.init(); was one of them stopped or started by other means?"
    )


def host():
    """A name for this host, equal on all its ranks: host name and network namespace (a machine may have several)."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{socket.gethostname()}/{network}/{os.environ.get('GROUP_RANK', '')}"


def seats(hosts, local_ranks=None):
    """Each rank's [local_rank, local_size, cross_rank, cross_size], and whether all hosts have equally many ranks.

    Args:
        hosts: the host of each rank. local_ranks: the launcher's numbers, if it gave any.
    """
    on = {}
    for rank, name in enumerate(hosts):
        on.setdefault(name, []).append(rank)
    local = [on[name].index(rank) for rank, name in enumerate(hosts)]
    if local_ranks and all(len({local_ranks[rank] for rank in ranks}) == len(ranks) for ranks in on.values()):
        local = list(local_ranks)
    table = []
    for rank, name in enumerate(hosts):
        across = [other for other in on if any(local[r] == local[rank] for r in on[other])]
        table.append([local[rank], len(on[name]), across.index(name), len(across)])
    return table, len({len(ranks) for ranks in on.values()}) == 1
