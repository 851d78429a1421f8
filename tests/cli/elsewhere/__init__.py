"""Apps whose ordered tasks lie in modules that only the app names."""
