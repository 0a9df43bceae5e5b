"""What is checked, and what came out.

A Link does not copy the state of its job. It holds the job's id and what the job found; whether the job waits, runs,
failed or was given up is read from the job's own row (`progress.py`). So the two can never disagree.
"""

from django.conf import settings
from django.db import models


class Batch(models.Model):
    """A list of links that a user gave, to be checked together."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    title = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    # Set when the links come from a sitemap's address: a job reads it.
    sitemap_url = models.CharField(max_length=2000, blank=True)
    sitemap_job = models.UUIDField(null=True, blank=True)
    sitemap_read_at = models.DateTimeField(null=True, blank=True)
    note = models.TextField(blank=True)
    # How often the pool had no place for the next link. Counted so that the page can say it afterwards.
    refusals = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "batches"

    def __str__(self) -> str:
        return self.title

    @property
    def label(self) -> str:
        """The `batch` of this batch's jobs: /jobs/?batch=<label> lists them."""
        return f"links-{self.pk}"


class Link(models.Model):
    class Feeding(models.TextChoices):
        WAITING = "waiting", "waits for a place in the pool"
        ACCEPTED = "accepted", "belongs to its job"
        DROPPED = "dropped", "cancelled before the pool had a place"

    class Outcome(models.TextChoices):
        OK = "ok", "ok"
        BROKEN = "broken", "broken"
        REFUSED = "refused", "refused"

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="links")
    url = models.CharField(max_length=2000)
    feeding = models.CharField(max_length=10, choices=Feeding, default=Feeding.WAITING)
    job_id = models.UUIDField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)
    size = models.PositiveBigIntegerField(null=True, blank=True)
    redirects = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["batch", "feeding"])]

    def __str__(self) -> str:
        return self.url
