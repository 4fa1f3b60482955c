"""Schemas over the admin paths: what is registered here, clients use, and the other way round."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from admin_support import Admin, administered

from replicator.engine.schemas.schema import SchemaType, TopicSchema

NS = "namespaces/acme/orders"
EU = "schemas/acme/orders/eu"
FULL = "persistent://acme/orders/eu"


def avro(**fields: Any) -> dict[str, Any]:
    """The body of an Avro schema whose fields have these types; a list of types has null as its default."""
    found = [
        {"name": name, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
        for name, kind in fields.items()
    ]
    definition = json.dumps({"type": "record", "name": "A", "fields": found})
    return {"type": "AVRO", "schema": definition, "properties": {}}


async def posted(admin: Admin, body: dict[str, Any], path: str = f"{EU}/schema") -> Any:
    status, answer = await admin.call("POST", path, body)
    assert status in (200, 202), answer
    return answer


def test_schemas_are_registered_listed_and_found_by_their_versions(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.refused(404, "POST", f"{EU}/schema", avro(x="int"))
            await admin.done("PUT", NS)
            await admin.refused(404, "GET", f"{EU}/schema")
            assert await admin.get(f"{EU}/schemas") == {"getSchemaResponses": []}
            first = (await posted(admin, avro(x="int")))["version"]["version"]
            assert (await posted(admin, avro(x="int")))["version"]["version"] == first, "the same one again"
            second = (await posted(admin, avro(x="int", y=["null", "string"])))["version"]["version"]
            assert first != second
            assert (await admin.get(f"{EU}/schema"))["version"] == second
            found = await admin.get(f"{EU}/schema/{first}")
            assert (found["type"], json.loads(found["data"])["fields"]) == ("AVRO", [{"name": "x", "type": "int"}])
            listed = (await admin.get(f"{EU}/schemas"))["getSchemaResponses"]
            assert [each["version"] for each in listed] == [first, second]
            assert (await admin.get(f"{EU}/metadata"))["info"]["version"] == second
            await admin.refused(404, "GET", f"{EU}/schema/7")
            await admin.refused(400, "GET", f"{EU}/schema/first")

    asyncio.run(main())


def test_a_schema_of_a_client_is_shown_with_the_version_that_the_client_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.engine.topic(FULL)
            version = await admin.engine.schemas.add(FULL, TopicSchema(SchemaType.STRING, b"", {"a": "b"}))
            shown = await admin.get(f"{EU}/schema")
            assert shown["version"].to_bytes(8, "big") == version
            assert (shown["type"], shown["data"], shown["properties"]) == ("STRING", "", {"a": "b"})

    asyncio.run(main())


def test_a_schema_that_does_not_go_with_the_others_is_refused_and_compatibility_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            await posted(admin, avro(x="int"))
            assert "x" in await admin.refused(409, "POST", f"{EU}/schema", avro(x="string"))
            answer = await posted(admin, avro(x="string"), f"{EU}/compatibility")
            assert answer["compatibility"] is False
            assert answer["reason"]
            assert (await posted(admin, avro(x="int"), f"{EU}/compatibility"))["compatibility"] is True
            await admin.done("PUT", f"{NS}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
            answer = await posted(admin, avro(x="string"), f"{EU}/compatibility")
            assert answer == {"schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE", "compatibility": True}
            await posted(admin, avro(x="string"))

    asyncio.run(main())


def test_the_version_of_a_schema_that_is_not_registered_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            version = (await posted(admin, avro(x="int")))["version"]["version"]
            assert await posted(admin, avro(x="int"), f"{EU}/version") == {"version": version}
            assert await posted(admin, avro(x="long"), f"{EU}/version") == {"version": -1}

    asyncio.run(main())


def test_a_schema_of_key_and_value_is_json_here_and_two_parts_for_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            key = {"type": "record", "name": "K", "fields": []}
            properties = {"key.schema.type": "AVRO", "value.schema.type": "INT32", "kv.encoding.type": "INLINE"}
            definition = json.dumps({"key": key, "value": ""})
            await posted(admin, {"type": "KEY_VALUE", "schema": definition, "properties": properties})
            shown = await admin.get(f"{EU}/schema")
            assert (shown["type"], json.loads(shown["data"])) == ("KEY_VALUE", {"key": key, "value": ""})
            stored = admin.engine.schemas.find(FULL).definition
            size = int.from_bytes(stored[:4], "big")
            assert json.loads(stored[4 : 4 + size]) == key
            assert stored[4 + size :] == bytes(4)

    asyncio.run(main())


def test_schemas_of_a_topic_are_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            await posted(admin, avro(x="int"))
            version = (await posted(admin, avro(x="int", y=["null", "int"])))["version"]["version"]
            await posted(admin, avro(x="int"), "schemas/acme/orders/other/schema")
            assert await admin.call("DELETE", f"{EU}/schema") == (200, {"version": version})
            await admin.refused(404, "GET", f"{EU}/schema")
            assert await admin.call("DELETE", f"{EU}/schema", force=True) == (200, {"version": -1})
            assert (await admin.get("schemas/acme/orders/other/schema"))["type"] == "AVRO"
            await posted(admin, avro(x="string"))
        async with administered(tmp_path) as admin:
            assert len((await admin.get(f"{EU}/schemas"))["getSchemaResponses"]) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"type": "NIX", "schema": ""}, 400, "NIX"),
        ({"schema": ""}, 400, "schema.type"),
        ({"type": "AVRO", "schema": "not json"}, 422, "AVRO"),
        ({"type": "KEY_VALUE", "schema": "{}"}, 422, "key"),
        ({"type": "STRING", "schema": "", "properties": {"a": 1}}, 400, "properties.a"),
        ([], 400, "schema"),
    ],
)
def test_a_schema_that_is_none_is_named(tmp_path: Path, body: object, status: int, named: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            for path in ("schema", "compatibility", "version"):
                assert named in await admin.refused(status, "POST", f"{EU}/{path}", body)
            assert await admin.get(f"{EU}/schemas") == {"getSchemaResponses": []}

    asyncio.run(main())
