"""``path("jobs/", include("django_boundedpool.urls"))``."""

from django.urls import path

from .http import views

app_name = "boundedpool"

urlpatterns = [
    path("", views.job_list, name="job-list"),
    path("<str:id>/", views.job_detail, name="job-detail"),
    path("<str:id>/cancel/", views.job_cancel, name="job-cancel"),
]
