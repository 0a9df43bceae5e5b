"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class BoundedPoolConfig(AppConfig):
    """Installs the pools. Starts no thread, opens no connection."""

    name = "django_boundedpool"
    label = "boundedpool"
    verbose_name = _("Bounded pool")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, context, signals
        from .engine.worker import Runners
        from .lifecycle.runtime import install
        from .observability import install as install_observability

        autodiscover_modules("jobs")
        checks.register_all()
        signals.connect()
        install_observability()
        install(Runners(context.run, context.arun, context.current_key))
