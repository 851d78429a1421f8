"""The base of the store: client, Lua scripts with named keys, key names, and packed records.

``script`` binds a Lua file by its header, ``keys`` spells every key, ``client`` sends scripts and translates
errors. ``lib/`` has the Lua libraries that scripts share.
Imports ``rules``. Every other package of ``store`` may import it.
"""
