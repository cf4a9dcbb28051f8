#!/usr/bin/env python3
"""Compares the fields and codes that an SDK uses with /openapi.json of the built server.

  scripts/sdk-fields.py LANGUAGE...    python, typescript, go
  scripts/sdk-fields.py --self-test

Red is: a field that the SDK sends or reads and the server does not have; a field that the server requires and the SDK
never sends; a route or a code that the server does not have. LEASEHOLD_BIN names the server's program.
"""
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
SDK = pathlib.Path(os.environ.get("LEASEHOLD_SDK_DIR", ROOT / "sdk"))


def document():
    """/openapi.json of a server on a free port, which ends with its input."""
    program = os.environ.get("LEASEHOLD_FAULT_PROXY", ROOT / "target/debug/examples/fault-proxy")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench:
        address = json.loads(bench.stdout.readline())["server"]
        with urllib.request.urlopen(f"{address}/openapi.json", timeout=30) as answer:
            api = json.load(answer)
        bench.stdin.close()
    return api


def schema(api, name):
    """The properties of a schema and those that it requires, with its parts merged."""
    found = api["components"]["schemas"].get(name)
    if found is None:
        return None
    properties, required = {}, set()
    for part in found.get("allOf", [found]):
        if "$ref" in part:
            inner, needed = schema(api, part["$ref"].rsplit("/", 1)[1])
            properties, required = {**properties, **inner}, required | needed
        properties.update(part.get("properties", {}))
        required |= set(part.get("required", []))
    return properties, required


def problems(api, used):
    """Everything in which an SDK and the server differ."""
    for way in ("sends", "reads"):
        for name, fields in used[way].items():
            found = schema(api, name)
            if found is None:
                yield f"{way} {name}, which the server does not have"
                continue
            properties, required = found
            for field in fields:
                if field not in properties:
                    yield f"{way} {name}.{field}, which the server does not have"
            for field in sorted(required - set(fields)):
                if way == "sends":
                    yield f"never sends {name}.{field}, which the server requires"
    routes = {f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods}
    for route in used["paths"]:
        if route not in routes:
            yield f"calls {route}, which the server does not have"
    codes = schema(api, "Problem")[0]["code"]["enum"]
    for code in used["codes"]:
        if code not in codes:
            yield f"knows the code {code}, which the server does not have"
    # Without these it cannot be a lock.
    for name in ("Acquire", "RenewMany", "Renew", "Release"):
        if name not in used["sends"]:
            yield f"does not say what it sends as {name}"


def self_test():
    part = {"properties": {"code": {"enum": ["HELD"]}}, "required": ["code"]}
    one = {"properties": {"id": {}, "ttl": {}}, "required": ["id"]}
    schemas = {name: one for name in ("Acquire", "RenewMany", "Renew", "Release")}
    schemas |= {"Problem": part, "Busy": {"allOf": [{"$ref": "#/components/schemas/Problem"}, one]}}
    api = {"components": {"schemas": schemas}, "paths": {"/v1": {"post": {}}}}
    good = {"sends": {name: ["id"] for name in ("Acquire", "RenewMany", "Renew", "Release")},
            "reads": {"Busy": ["code", "ttl"]}, "paths": ["POST /v1"], "codes": ["HELD"]}
    assert not list(problems(api, good))
    for bad in ({"sends": {**good["sends"], "Acquire": ["id", "tll"]}}, {"sends": {**good["sends"], "Renew": ["ttl"]}},
                {"sends": {"Acquire": ["id"], "RenewMany": ["id"], "Renew": ["id"]}}, {"codes": ["HOLD"]},
                {"reads": {"Busy": ["reason"]}}, {"reads": {"Buzzy": []}}, {"paths": ["GET /v1"]}):
        assert len(list(problems(api, {**good, **bad}))) == 1, bad


def main():
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        return
    if not sys.argv[1:]:
        sys.exit(__doc__)
    api, found = document(), []
    for language in sys.argv[1:]:
        printed = subprocess.run([SDK / language / "bin/fields"], check=True, capture_output=True, text=True).stdout
        found += [f"sdk/{language} {problem}" for problem in problems(api, json.loads(printed))]
    if found:
        sys.exit("\n".join(found))


main()
