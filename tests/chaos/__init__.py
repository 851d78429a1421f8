"""A chaos run: real workers and a real Redis under seeded faults, and a checker of what they did."""
