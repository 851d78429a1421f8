"""Migrations: permissions only, no table."""
