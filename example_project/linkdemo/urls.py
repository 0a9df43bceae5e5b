from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="linkchecker:index")),
    path("links/", include("linkchecker.urls")),
    path("favicon.ico", RedirectView.as_view(url="/static/linkchecker/icon.svg")),
    # Status, result and cancellation of every job, for its owner.
    path("jobs/", include("django_boundedpool.urls")),
    path("login/", auth_views.LoginView.as_view(), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    # /metrics is open to everybody who reaches the server; put a network rule in front of it when that is not only you.
    path("", include("django_prometheus.urls")),
]
