import os
import threading
import time

from django.http import HttpResponse, JsonResponse

from django_boundedpool import Rejected, accepted, pools

from .jobs import JOBS
from .ledger import note


def anyone(request, job, action):
    """The bench has no users: everybody may see and cancel every job."""
    return True


def only_another_process(get_response):
    """Answer 421 where the header X-Not-Pid names this process: the client then tries to reach another worker."""

    def middleware(request):
        if request.headers.get("X-Not-Pid") == str(os.getpid()):
            return HttpResponse(status=421)
        response = get_response(request)
        response["X-Pid"] = str(os.getpid())
        return response

    return middleware


def _submit(request):
    job = JOBS[request.GET.get("job", "work")]
    return job.submit(float(request.GET.get("seconds", "0.1")))


def submit(request):
    """Submit one job; a refusal is answered by OverloadMiddleware."""
    return accepted(request, _submit(request))


def batch(request):
    """Submit n jobs, and answer with their ids."""
    ids = [str(_submit(request).id) for _ in range(int(request.GET["n"]))]
    return JsonResponse({"ids": ids, "pid": os.getpid()}, status=202)


def slow(request):
    """Be in flight for a while, then submit a job and tell how that went."""
    note("in_flight", request.GET["name"])
    time.sleep(float(request.GET["busy"]))
    try:
        handle = _submit(request)
    except Rejected as error:
        if "raise" in request.GET:
            raise
        return JsonResponse({"code": error.code, "id": None})
    return JsonResponse({"code": "accepted", "id": str(handle.id)})


def state(request):
    """This process as it is, without making it start anything."""
    return JsonResponse({"pid": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]})


def stats(request):
    figures = pools["default"].stats()
    return JsonResponse({"running": figures.running, "queued": figures.queued, "rejected": dict(figures.rejected)})


def alive(request):
    return HttpResponse("alive")
