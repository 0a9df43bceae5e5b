import os

from django.core.asgi import get_asgi_application

from django_boundedpool.lifecycle.asgi import lifespan

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "linkdemo.settings")

# The wrapper lets the pools finish their work before the server's shutdown ends.
application = lifespan(get_asgi_application())
