"""The terminal interface: conversation, prompt and live figures.

`localspec.tui.app.run_app` starts it. Nothing here is imported before a person asks for the interface.
"""
