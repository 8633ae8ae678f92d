"""The parts of the kit. Each module declares its checks when it is imported; the order is that of the report."""
from ..trial import Checks

CHECKS = Checks()

from . import views, memory, tenants, containers, overhead, compute, pytorch, others  # noqa: E402,F401

# `leaks` is looked at by the process outside, after every other part, and always.
PARTS = ("views", "memory", "tenants", "containers", "overhead", "compute", "pytorch", "others", "leaks")
