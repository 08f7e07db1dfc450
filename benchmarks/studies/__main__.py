"""``python -m benchmarks.studies NAME [--json | --markdown] [--requests N]``: a published claim, replayed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from benchmarks.studies import batching, chunking, fairness, paging, pd
from benchmarks.studies.report import Study, document, markdown

__all__ = ["STUDIES", "main"]

STUDIES: dict[str, Callable[..., Study]] = {
    "batching": batching.study,
    "chunking": chunking.study,
    "fairness": fairness.study,
    "paging": paging.study,
    "pd": pd.study,
}


def main(argv: list[str] | None = None) -> None:
    """Run one study and print it. A claim that does not come out is shown as NO; it is no error."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies", description="Published claims about policies, replayed."
    )
    parser.add_argument("name", choices=sorted(STUDIES), help="which study")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--markdown", action="store_true", help="the page in docs/studies (the default)")
    parser.add_argument("--requests", type=int, help="so many requests instead of the study's own number")
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    study = STUDIES[given.name](**({} if given.requests is None else {"requests": given.requests}))
    print(json.dumps(document(study)) if given.json else markdown(study), end="\n" if given.json else "")


if __name__ == "__main__":
    main()
