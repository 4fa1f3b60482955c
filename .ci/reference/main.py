"""Makes docs/reference/ from the code: `make reference`. With `--check` it only says what is not current."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import drawings
import reference_beside
import reference_commands
import reference_errors
import reference_fields
import reference_json
import reference_limits
import reference_routes
from reference_fields import Undocumented

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
MADE: dict[str, Callable[[], str]] = {
    reference_fields.PAGE: reference_fields.page,
    reference_routes.PAGE: lambda: reference_routes.made(DOCS),
    reference_limits.PAGE: reference_limits.page,
    reference_commands.PAGE: reference_commands.page,
    reference_json.PAGE: reference_json.page,
    reference_errors.PAGE: lambda: reference_errors.page(REPOSITORY),
    reference_beside.PAGE: lambda: reference_beside.page(REPOSITORY),
}


def main(check: bool) -> int:
    status = 0
    drawn = {name: partial(str, text) for name, text in drawings.made().items()}
    for name, made in {**MADE, **drawn}.items():
        try:
            text = made()
        except Undocumented as missing:
            print(missing, file=sys.stderr)
            status = 1
            continue
        file = DOCS / name
        if file.is_file() and file.read_text() == text:
            continue
        if check:
            print(f"docs/{name} is not what the code says: run `make reference`", file=sys.stderr)
            status = 1
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            print(f"docs/{name} is written")
    return status


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
