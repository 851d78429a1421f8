"""Redis: keys, scripts and typed methods over them. The only folder that imports redis."""
