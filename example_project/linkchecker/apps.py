from django.apps import AppConfig


class LinkcheckerConfig(AppConfig):
    name = "linkchecker"
    verbose_name = "Link checker"
    default_auto_field = "django.db.models.BigAutoField"
