"""A Django service that answers when Kafka has the event.

    export BOOTSTRAP_SERVERS=localhost:9092
    gunicorn --chdir examples/django_service --workers 2 --threads 8 --preload service
    curl -d '{"user": "ada"}' http://localhost:8000/events/signups

This file has all of Django. In a project, put ``events.py`` beside the views of an app; settings, ``apps.py`` and
``wsgi.py`` need no change.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from events import events

from aioproducer import KafkaError

REQUEST_SECONDS = float(os.environ.get("REQUEST_SECONDS", "5"))
"""Seconds that a request waits for Kafka before the response asks the client to try again."""


@csrf_exempt
@require_POST
def post_event(request: HttpRequest, topic: str) -> HttpResponse:
    """Return 201 with the record's partition and offset; 503 if the client may try again, 400 if that is no use.

    With ``?wait=no``, return 202 at once; if the record is not delivered, that is logged.
    """
    delivery = events().send(topic, request.body)
    if request.GET.get("wait") == "no":
        return HttpResponse(status=202)
    try:
        stored = delivery.result(REQUEST_SECONDS)
    except KafkaError as error:
        return JsonResponse({"error": str(error)}, status=503 if error.retriable else 400)
    except TimeoutError:
        # The record may still be stored, so a client that tries again may store it twice.
        return JsonResponse({"error": f"no answer from Kafka within {REQUEST_SECONDS:g} s"}, status=503)
    return JsonResponse({"partition": stored.partition, "offset": stored.offset}, status=201)


urlpatterns = [path("events/<str:topic>", post_event)]

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "127.0.0.1"])
django.setup()
application = get_wsgi_application()
