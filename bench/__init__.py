"""Measurements: each module has `measure()`; `python -m bench.run` records all that can run here."""
