from django.urls import include, path

from . import views

urlpatterns = [
    path("jobs/", include("django_boundedpool.urls")),
    path("submit/", views.submit),
    path("batch/", views.batch),
    path("slow/", views.slow),
    path("state/", views.state),
    path("stats/", views.stats),
    path("alive/", views.alive),
]
