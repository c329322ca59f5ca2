"""Faults of Cuteforge's own: logged whole, told to the client as an id only."""

from __future__ import annotations

import secrets

from cuteforge.server.logging import logger


class InternalFault(Exception):
    """What a client hears of a fault; the log has the rest under the same id."""

    def __init__(self, correlation_id: str) -> None:
        super().__init__(
            f"Cuteforge met an internal fault {correlation_id}. Nothing stored is lost; see the server's log "
            "under that id and report it."
        )
        self.correlation_id = correlation_id


def report_fault(error: BaseException, where: str) -> InternalFault:
    """Log an exception under a new correlation id."""
    fault = InternalFault(f"f_{secrets.token_hex(4)}")
    logger().error(
        "internal fault",
        exc_info=error,
        extra={"correlation_id": fault.correlation_id, "where": where},
    )
    return fault
