"""Hostile input: stored records, messages, HTTP requests and replies of Redis that were changed at random.

Each input is made from its number alone. The test command tries 2,000; LOWKIQ_FUZZ_INPUTS tries another
number, from LOWKIQ_FUZZ_SEED on, and ``nox -s full -- --minutes M`` goes on for a share of the minutes.
"""
