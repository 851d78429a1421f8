"""What users and their programs see, kept in files: ``python -m tests.golden`` writes them anew."""
