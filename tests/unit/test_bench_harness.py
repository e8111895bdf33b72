from __future__ import annotations

from bench.harness import Bench, Contender, NotMeasured, Target, markdown, measure


def absent() -> float:
    raise NotMeasured("it is not installed")


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    calls: list[str] = []

    def contender(name: str) -> Contender:
        def once() -> float:
            calls.append(name)
            return 100.0 if len(calls) <= 2 else float(len(calls))

        return Contender(name, once)

    result = measure(Bench("b", "", "s", (contender("A"), contender("B")), ()), rounds=3)
    assert "".join(calls) == "AB" * 4
    assert result.series["A"].values == (3.0, 5.0, 7.0)
    assert result.series["A"].median == 5.0
    assert result.series["A"].quartiles == (4.0, 6.0)


def test_a_target_is_met_missed_or_not_measured_by_the_median() -> None:
    bench = Bench(
        "b",
        "",
        "s",
        (Contender("ours", lambda: 2.0), Contender("peer", lambda: 3.0), Contender("absent", absent)),
        (
            Target("no slower", "ours", lambda s: s["peer"].median),
            Target("at most 1", "ours", lambda _: 1.0),
            Target("against what is not there", "ours", lambda s: s["absent"].median),
        ),
    )
    result = measure(bench, rounds=1)
    assert [verdict.state for verdict in result.verdicts] == ["met", "missed", "not measured"]
    table = markdown(result)
    assert "| absent | not measured: it is not installed |" in table
    assert "- at most 1: 2.000 against 1.000 s: **missed**" in table
