"""Pure decisions about jobs: no I/O, time is passed in, only the standard library is imported."""
