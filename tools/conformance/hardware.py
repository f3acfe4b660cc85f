"""Rows 129 to 135: NICs and GPUs."""

from rig import new_engine
from rows import KEEP, absent, keep


@keep(
    129,
    "a device list with an unknown name only: code, and a write",
    [0, 0, True],
    env={"MC_FORCE_TCP": None},
    needs="no nic",
)
def _(rig):
    engine = new_engine()
    rc = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "no_such_nic")
    return [rc, *rig.write(engine=engine)]


absent(130, 'GPU pointer with location "*": 0, topology key cuda:N', KEEP, "needs a GPU and a NIC")
absent(131, "GPU to GPU write, all pairs of rails", KEEP, "needs GPUs and NICs")
absent(132, "one batch with host and GPU sources", KEEP, "needs a GPU and a NIC")
absent(133, "source not registered: -1, no retry", KEEP, "needs a NIC")
absent(134, "GPU memory freed, the same address registered anew", KEEP, "needs a GPU and a NIC")
absent(135, "a NIC's port goes down during a transfer", KEEP, "needs two NICs")
