"""Examples; each runs on its own."""
