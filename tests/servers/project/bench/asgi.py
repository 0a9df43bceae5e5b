import os

from django.core.asgi import get_asgi_application

from django_boundedpool.lifecycle.asgi import lifespan

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
application = lifespan(get_asgi_application())
