import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "linkdemo.settings")
django_application = get_asgi_application()

# Only now: the package's modules need the settings and the apps.
from django_boundedpool.lifecycle.asgi import lifespan  # noqa: E402

# The wrapper lets the pools finish their work before the server's shutdown ends.
application = lifespan(django_application)
