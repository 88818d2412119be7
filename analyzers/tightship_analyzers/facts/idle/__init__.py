"""How idle time gets its cause and its place; `facts.idle_causes` is what to ask. docs/idle.md has the definitions."""
