from django.contrib import admin

from .models import Batch, Link


@admin.register(Batch)
class BatchAdmin(admin.ModelAdmin):
    list_display = ["title", "owner", "created_at", "cancelled_at", "refusals"]
    list_filter = ["created_at"]
    list_select_related = ["owner"]
    search_fields = ["title"]


@admin.register(Link)
class LinkAdmin(admin.ModelAdmin):
    list_display = ["url", "batch", "feeding", "outcome", "status_code", "detail"]
    list_filter = ["feeding", "outcome"]
    list_select_related = ["batch"]
    search_fields = ["url"]
    raw_id_fields = ["batch"]
