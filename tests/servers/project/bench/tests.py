"""Run by `manage.py test`: a project whose tests submit nothing must notice nothing of the pools."""

import threading

from django.test import TestCase


class PageTest(TestCase):
    def test_page_starts_no_thread(self):
        self.assertEqual(self.client.get("/alive/").status_code, 200)
        self.assertFalse([t.name for t in threading.enumerate() if t.name.startswith("boundedpool")])
