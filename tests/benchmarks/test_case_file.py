"""Reading a file of cases, and examining one that is in no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.case_file import Stated, expected_knobs, forbidden, parse_cases, stated_numbers, variant_sets
from benchmarks.cases import examined, main

TEXT = """# Cases

## X7 · `QUEUE_SEATS` · three seats for twenty

- **Source** nowhere.
- **Expected diagnosis** `QUEUE_SEATS`. Evidence: `block[seats]` ≥ 0.9, running max 3, KV max < 0.2. Knob: seats 16. Must not
  propose: more KV, a larger budget. Must not say `OVERLOAD`.

```yaml
seed: 5
engine: {cost: S80, budget: 4096, seats: 3, kv_tokens: 200000, step: mixed, admit: chunk}
load: [{cls: a, n: 200, arrive: "poisson(3)", isl: "ln(600,0.5,50,3000)", osl: "u(100,200)"}]
```
| variant | TTFT p50 s |
|---|---|
| base | 9 |
| seats 16 | 0.1 |
| **KV TIMES2** | 9 |
| another moon | 9 |

## X8 · `NONE` · nothing

- **Expected** `NONE`.

```yaml
seed: 6
client: {max_in_flight: 9}  # a request's time begins when its slot frees
engine: {cost: S80, budget: 4096, seats: 64, kv_tokens: 200000, step: mixed, admit: chunk}
load: [{cls: a, n: 200, arrive: "poisson(2)", isl: "ln(600,0.5,50,3000)", osl: "u(100,200)"}]
```
""".replace("TIMES", "\u00d7")


def test_what_a_file_says_is_read() -> None:
    first, second = parse_cases(TEXT)
    assert (first.name, first.ids, first.named) == ("X7", ("QUEUE_SEATS",), ("QUEUE_SEATS",))
    assert expected_knobs(first) == {"max_num_seqs"}
    assert forbidden(first) == ({"OVERLOAD"}, {("num_gpu_blocks", 1), ("max_num_batched_tokens", 0)}, False)
    assert stated_numbers(first) == [
        Stated(metric="block[seats]", how=">=", value=0.9),
        Stated(metric="running max", how="~", value=3.0),
        Stated(metric="kv max", how="<", value=0.2),
    ]
    assert [variant_sets(first, row, 101) for row in first.rows] == [(), ("max_num_seqs=16",), ("num_gpu_blocks=201",), None]
    assert second.ids == ("NONE",)
    assert "arrival: slot}" in second.recipe


def test_a_case_is_examined_with_its_proof_and_variants() -> None:
    first, second = parse_cases(TEXT)
    row = examined(first, proof=True, variants=True)
    assert row["found"][0] == "QUEUE_SEATS"
    assert row["right first"] and row["right knob"] and row["proof"] == "confirmed" and not row["said wrong"]
    assert all(each["holds"] for each in row["numbers"])
    assert row["variants"]["another moon"] == "not understood"
    assert row["variants"]["seats 16"] != row["variants"]["base"] == row["variants"]["KV \u00d72"]
    quiet = examined(second, proof=False, variants=False)
    assert quiet["found"] == [] and quiet["right first"]


def test_a_wrong_expectation_is_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.md"
    path.write_text(TEXT.replace("`QUEUE_SEATS`", "`QUEUE_KV`"), encoding="utf-8")
    assert main([str(path), "--no-prove", "--no-variants"]) == 1
    said = capsys.readouterr().out
    assert "WRONG X7" in said and "ok    X8" in said and "1 of 2 cases right" in said
