"""The live walkthrough of the documentation: what it plays is recorded here, from real workers."""
