"""Settings, read when they are asked for, as records.

``BOUNDED_POOLS`` and ``BOUNDED_POOL_OPTIONS`` are the only settings of this app.
"""

from __future__ import annotations

from django.conf import settings

from .engine.config import Fault, PoolConfig, ProcessOptions, read_options, read_pools, refuse


def pool_configs() -> tuple[dict[str, PoolConfig], list[Fault]]:
    """Return the record of each pool that could be read, and what is wrong with the setting."""
    return read_pools(getattr(settings, "BOUNDED_POOLS", {}))


def process_options() -> tuple[ProcessOptions, list[Fault]]:
    """Return the record of the process-wide options, and what is wrong with the setting."""
    return read_options(getattr(settings, "BOUNDED_POOL_OPTIONS", {}))


def load() -> tuple[dict[str, PoolConfig], ProcessOptions]:
    """Return all configuration.

    Raises:
        ConfigurationError: names every fault of both settings.
    """
    configs, faults = pool_configs()
    options, more = process_options()
    refuse(faults + more)
    return configs, options
