"""torchrun, which also names the hosts that came when one stays away: `python -m helpers.cluster.torchrun OPTIONS`.

It takes torchrun's options and does what torchrun does, with three differences. When not all hosts come in time
(`--rdzv-conf join_timeout=SECONDS`, 600 by default), torchrun shows a traceback; this names the hosts that came. Each
start of the ranks gets a new store: in the one that torch 2.15 keeps over restarts, an early rank finds the address
of a dead one. And the variable HELPERS_ROUND holds how often the hosts have met before.
"""

import os
import sys

OWN_STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
ROUND = "HELPERS_ROUND"  # read by helpers.launcher.group


def main(arguments=None) -> int:
    """Run one agent; returns the exit status."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

    name = "python -m helpers.cluster.torchrun"
    os.environ.setdefault(OWN_STORES, "1")
    _watch_rendezvous()
    try:
        run.main(arguments)
    except RendezvousTimeoutError as error:
        print(f"{name}: {error or 'the other hosts did not come in time'}", file=sys.stderr)
    except RendezvousConnectionError as error:
        print(
            f"{name}: no answer at the meeting point ({error}). Is the command running on that host, with "
            "the same --rdzv-id, and can its port be reached from here?",
            file=sys.stderr,
        )
    except ChildFailedError as error:
        print(f"{name}: {error}", file=sys.stderr)
    else:
        return 0
    return 1


def _watch_rendezvous():
    """Name the hosts in the error of a rendezvous that timed out; set HELPERS_ROUND after one that succeeded."""
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

    join = dynamic.DynamicRendezvousHandler.next_rendezvous

    def joined(self):
        try:
            found = join(self)
        except RendezvousTimeoutError:
            message = _who_came(self)
            if message is None:  # this torch keeps its state elsewhere
                raise
            raise RendezvousTimeoutError(message) from None
        os.environ[ROUND] = str(_round(self))
        return found

    dynamic.DynamicRendezvousHandler.next_rendezvous = joined


def _round(handler):
    try:
        return handler._state_holder.state.round
    except AttributeError:
        return 0


def _who_came(handler):
    try:
        state, settings = handler._state_holder.state, handler._settings
        came = sorted({node.addr for node in [*state.participants, *state.wait_list]} | {handler._this_node.addr})
        wanted, waited = settings.min_nodes, settings.timeout.join.total_seconds()
    except AttributeError:
        return None
    return (
        f"{len(came)} of {wanted} hosts came within {waited:.0f} s: {', '.join(came)} "
        f"(this is {handler._this_node.addr}). Start the same command on the others, with the same --rdzv-id and a "
        "--rdzv-endpoint that they can reach; how long is waited for them: --rdzv-conf join_timeout=SECONDS"
    )


if __name__ == "__main__":
    sys.exit(main())
