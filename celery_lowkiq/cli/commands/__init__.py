"""The commands that do more than one action of the table: each module has one, of its own name.

They are imported when they are needed: every ``celery`` command imports the group, also a worker's.
"""
