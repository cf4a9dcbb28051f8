"""Prints which fields, routes and codes the SDK uses, from the tables that it uses itself."""

from __future__ import annotations

import json

from leasehold import _wire


def main() -> None:
    used = {
        "sends": {schema: sorted(fields) for schema, fields in _wire.SENDS.items()},
        "reads": {schema: sorted(fields) for schema, fields in _wire.READS.items()},
        "paths": sorted(_wire.PATHS.values()),
        "codes": sorted(_wire.KNOWN_CODES),
    }
    print(json.dumps(used, indent=1))


if __name__ == "__main__":
    main()
