from django.urls import path

from . import views

app_name = "linkchecker"
urlpatterns = [
    path("", views.index, name="index"),
    path("one/", views.check_one, name="check-one"),
    path("<int:pk>/", views.batch, name="batch"),
    path("<int:pk>/progress/", views.progress, name="progress"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
    path("<int:pk>/again/", views.check_again, name="check-again"),
]
