"""Imports over REST: inline content and an upload."""

from tests.web.api import Api


def test_an_upload_becomes_a_dataset(api: Api):
    form = {"dataset": "Uploaded", "header": "true", "strategy": "replace"}
    made = api.ask("POST", "/data/import", data=form, files={"file": ("t.csv", b"city;n\nGraz;1\n", "text/csv")})
    assert (made["dataset"], made["imported"], made["version"], made["bad_rows"]) == ("Uploaded", 1, 1, 0)
    found = api.ask("POST", "/data/query", json={"sql": "SELECT city, n FROM Uploaded"})
    assert found["rows"] == [{"city": "Graz", "n": 1}]


def test_content_in_json_and_a_dry_run(api: Api):
    arguments = {"dataset": "Inline", "content": '[{"a": 1}]', "dry_run": True}
    shown = api.ask("POST", "/data/import", json=arguments)
    assert (shown["preview"], shown["dataset_id"]) == ([{"a": 1}], None)
    both = api.send("POST", "/data/import", json={**arguments, "url": "http://example.com/a.csv"})
    assert both.status_code == 400
