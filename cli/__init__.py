"""The command `canon`: reads arguments, calls the library, prints. Installed as the package canon_cli."""
