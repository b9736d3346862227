"""Has one test for each cell of a run, made in `conftest.py`."""
