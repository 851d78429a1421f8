"""The dashboard within other applications, under a prefix."""
