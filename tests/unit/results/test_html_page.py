"""The HTML page of a sweep holds its data as JSON, which has no infinity."""

from __future__ import annotations

import json

from hwsim.record import finite


def test_what_is_no_number_becomes_null_on_the_page() -> None:
    data = {"values": [1.5, float("inf"), float("nan")], "at": {"error": float("-inf"), "tile": 8}, "name": "x"}
    found = finite(data)
    assert found == {"values": [1.5, None, None], "at": {"error": None, "tile": 8}, "name": "x"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
