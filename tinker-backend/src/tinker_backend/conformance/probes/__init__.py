"""The probes, grouped by what they look at. Importing this package fills the registry in the order of the groups."""

from . import (  # noqa: F401, I001  (the order is the order of the table)
    service,
    access,
    gradient,
    losses,
    custom_loss,
    optimizer,
    ordering,
    retries,
    sampling,
    scores,
    snapshots,
    futures,
    checkpoints,
    validation,
)
