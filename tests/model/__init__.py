"""The rules of a job in plain Python, beside the store."""

import pytest

# A failure in CI shows what store and model say.
pytest.register_assert_rewrite("tests.model.machine", "tests.model.people")
