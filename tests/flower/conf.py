"""Flower's configuration file: Flower runs it before it makes its pages."""

from celery_lowkiq.flower import install

install()
