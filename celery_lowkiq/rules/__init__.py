"""Pure decisions about jobs: no I/O, no clock of their own, nothing but the standard library."""
