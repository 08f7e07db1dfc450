"""The kernels on a GPU, where there is one; without, its checks run on the references: a device meets no untried code."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra [engine] is not installed")

import replay_kernels as ops  # noqa: E402
from replay_kernels import attention_checks, device_checks, op_checks  # noqa: E402
from replay_kernels.cases import cases  # noqa: E402
from replay_kernels.findings import Finding, rounds_once, same, untouched, within, within_twice  # noqa: E402
from replay_kernels.problems import Heads  # noqa: E402
from tests.kernels.triton_runs import lines_of  # noqa: E402

__all__: list[str] = []

BF16 = torch.bfloat16


def assert_all_hold(findings: list[Finding], least: int) -> None:
    assert not [finding for finding in findings if not finding.holds]
    assert len(findings) >= least


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_finding_holds_on_the_device() -> None:
    _, findings, errors = lines_of("check", "--device", "cuda")
    assert len(findings) > 400, errors
    assert not [finding for finding in findings if not finding["holds"]]


def test_the_checks_for_a_device_hold_for_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention_checks.GEOMETRIES, "gpu", ((Heads(4, 2, 64), 16, (BF16,)),))
    small = tuple(case for case in cases("gpu") if case.name != "long chunk, long context")
    monkeypatch.setattr(attention_checks, "cases", lambda tier: small)
    with ops.use_backend("reference"):
        assert_all_hold(list(attention_checks.attention_checks("gpu", "cpu", (BF16,))), 60)
        assert_all_hold(list(op_checks.op_checks("gpu", "cpu", (BF16,))), 60)
        assert_all_hold(list(device_checks.offset_checks("cpu", BF16, 2**16)), 7)


def test_a_check_tells_wrong_from_right() -> None:
    want = torch.linspace(-3, 3, 100)
    got = want.to(BF16)
    wrong = got.clone()
    wrong[50] += 1
    hidden = torch.full((4,), float("nan"))
    assert within("x", got, want).holds and rounds_once("x", got, want).holds and same("x", got, got.clone()).holds
    assert within_twice("x", got, want, got).holds and untouched("x", hidden).holds
    assert not within("x", wrong, want).holds and not rounds_once("x", wrong, want).holds and not same("x", wrong, got).holds
    assert not within_twice("x", wrong, want, got).holds and not untouched("x", torch.zeros(1)).holds
    assert not within("x", torch.full((100,), float("nan")), want).holds
    assert not rounds_once("x", torch.full((100,), float("nan")), want).holds
    assert not within_twice("x", torch.full((100,), float("nan")), want, got).holds
