from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("alive/", lambda request: HttpResponse("alive"))]
