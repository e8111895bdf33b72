"""The pages of a model server in a real browser: what a person does, and what it then says."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Page, expect

from longboat.runtime import bundle
from tests.browser.conftest import Watched
from tests.serve import making
from tests.serve.serving import serving

KINDS = ("words", "digits", "table", "logarithm")


def shown(page: Page) -> list[tuple[str, str]]:
    """The bars: label and per cent."""
    items = page.locator("#bars li")
    return [
        (items.nth(i).locator(".name").inner_text(), items.nth(i).locator(".figure").inner_text())
        for i in range(items.count())
    ]


def drawn(page: Page, *points: tuple[float, float]) -> None:
    """A stroke of the mouse through points given as shares of the paper."""
    box = page.locator("#paper").bounding_box()
    assert box is not None
    places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for x, y in places[1:]:
        page.mouse.move(x, y, steps=6)
    page.mouse.up()


def test_a_typed_review_gets_its_sentiment_in_per_cent_and_the_words_that_weighed(page: Page, site: str) -> None:
    page.goto(site + "/models/words")
    page.get_by_role("textbox").fill("a good good film, never bad")
    page.get_by_role("button", name="Ask the model").click()
    good = 1 / (1 + math.exp(-2 * (2 - 1)))
    expect(page.locator("#headline")).to_have_text(f"good: {100 * good:.1f} %")
    assert shown(page) == [("bad", f"{100 * (1 - good):.1f} %"), ("good", f"{100 * good:.1f} %")]
    expect(page.locator("#words li .word").first).to_have_text("good")
    expect(page.locator("#marked mark")).to_have_text(["good", "good", "bad"])


def test_a_sample_shows_its_true_label_until_the_text_is_changed(page: Page, site: str) -> None:
    page.goto(site + "/models/words")
    page.get_by_role("button", name="a good one").click()
    expect(page.locator("#truth")).to_have_text("True label: good (right)")
    page.get_by_role("textbox").fill("bad")
    page.get_by_role("button", name="Ask the model").click()
    expect(page.locator("#headline")).to_have_text("bad: 88.1 %")
    expect(page.locator("#truth")).to_be_hidden()


def test_the_text_page_works_with_the_keyboard_alone(page: Page, site: str) -> None:
    page.goto(site + "/models/words")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("textbox")).to_be_focused()
    page.keyboard.type("so bad")
    page.keyboard.press("Control+Enter")
    status = page.locator("[role=status]", has=page.locator("#headline"))
    expect(status).to_contain_text("bad: 88.1 %")


def test_a_drawing_is_centred_and_scaled_as_mnist_was(page: Page, site: str) -> None:
    page.goto(site + "/models/digits")
    with page.expect_request("**/v1/models/digits:predict") as asked:
        drawn(page, (0.1, 0.1), (0.1, 0.35), (0.22, 0.35))
    row = np.array(json.loads(asked.value.post_data or "")["instances"][0], np.float32)
    image = row.reshape(28, 28)
    inked = np.argwhere(image > 0)
    high, wide = inked.max(axis=0) - inked.min(axis=0) + 1
    assert max(high, wide) == 20
    ys, xs = np.mgrid[0:28, 0:28] + 0.5
    assert abs((image * ys).sum() / image.sum() - 14) <= 0.5
    assert abs((image * xs).sum() / image.sum() - 14) <= 0.5
    assert image.max() == 1
    answer = making.expected(0, row[None])[0]
    expect(page.locator("#headline")).to_have_text(f"{answer.argmax()}: {100 * answer.max():.1f} %")
    figures = [float(text.strip("<> %")) for _, text in shown(page)]
    assert len(figures) == 10
    assert figures == pytest.approx((100 * answer).tolist(), abs=0.1)


def test_the_keys_draw_too(page: Page, site: str) -> None:
    page.goto(site + "/models/digits")
    page.locator("#paper").focus()
    page.keyboard.press("Space")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#pen")).to_contain_text("drawing, column 14")
    with page.expect_request("**/v1/models/digits:predict") as asked:
        page.keyboard.press("Enter")
    image = np.array(json.loads(asked.value.post_data or "")["instances"][0]).reshape(28, 28)
    high, wide = np.ptp(np.argwhere(image > 0), axis=0) + 1
    assert (high, wide < 6) == (20, True), "a stroke straight down, without the ring that shows the pen"
    expect(page.locator("#headline")).to_contain_text("%")
    page.keyboard.press("Delete")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Draw something first")


def test_a_finger_draws_and_does_not_scroll(page: Page, site: str) -> None:
    page.goto(site + "/models/digits")
    box = page.locator("#paper").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 60, box["y"] + 60)
    expect(page.locator("#headline")).to_contain_text("%")
    assert page.locator("#paper").evaluate("each => getComputedStyle(each).touchAction") == "none"


def test_an_image_file_becomes_what_the_model_sees(page: Page, site: str) -> None:
    page.goto(site + "/models/digits")
    dark_on_white = page.evaluate(
        """() => { const c = document.createElement("canvas"); c.width = c.height = 100;
        const p = c.getContext("2d"); p.fillStyle = "#fff"; p.fillRect(0, 0, 100, 100);
        p.fillStyle = "#000"; p.fillRect(10, 10, 20, 60); return c.toDataURL("image/png").split(",")[1]; }"""
    )
    with page.expect_request("**/v1/models/digits:predict") as asked:
        page.locator("#file").set_input_files(
            {"name": "one.png", "mimeType": "image/png", "buffer": base64.b64decode(dark_on_white)}
        )
    image = np.array(json.loads(asked.value.post_data or "")["instances"][0]).reshape(28, 28)
    high, wide = np.ptp(np.argwhere(image > 0.2), axis=0) + 1
    assert (high, 6 <= wide <= 8) == (20, True), "the dark bar is light, and the white paper dark"
    page.locator("#file").set_input_files({"name": "not.png", "mimeType": "image/png", "buffer": b"no image"})
    expect(page.get_by_role("alert")).to_contain_text("not.png cannot be opened")


def test_a_form_has_a_field_for_each_value_and_computes(page: Page, site: str) -> None:
    page.goto(site + "/models/table")
    for label, value in (("a", "1.5"), ("b 1", "1"), ("b 2", "2"), ("b 3", "3")):
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Ask the model").click()
    expect(page.locator("#headline")).to_have_text("total: 7.5")
    page.get_by_label("a", exact=True).fill("")
    page.get_by_role("button", name="Ask the model").click()
    expect(page.locator("#headline")).to_have_text("total: no number came out")


def test_the_json_page_shows_the_answer_as_it_came(page: Page, site: str) -> None:
    page.goto(site + "/models/logarithm")
    page.get_by_role("textbox").fill('{"instances": [[1, 1], [-1, 1]]}')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#took")).to_contain_text("2 rows in")
    assert json.loads(page.locator("#reply").inner_text()) == {"predictions": [[0, 0], [None, 0]]}
    page.get_by_role("textbox").fill('{"instances": [[1, 1]')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")


def test_what_the_server_refuses_is_told_in_its_words(page: Page, site: str) -> None:
    page.goto(site + "/models/words")
    page.get_by_role("textbox").fill("kaboom")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("kaboom is not a word")
    expect(page.locator("#answer")).to_be_hidden()
    page.get_by_role("textbox").fill("good")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#headline")).to_contain_text("good")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_server_that_is_slow_or_gone_is_said_so(page: Page, models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "words", "--no-grpc") as running:
        page.goto(f"http://127.0.0.1:{running.port}/models/words")
        page.get_by_role("textbox").fill("good")
        os.kill(running.process.pid, signal.SIGSTOP)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#waiting")).to_contain_text("Waiting for the server")
        os.kill(running.process.pid, signal.SIGCONT)
        expect(page.locator("#headline")).to_contain_text("good")
        expect(page.locator("#waiting")).to_be_empty()
        running.process.kill()
        running.process.wait()
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer")


def test_a_token_is_asked_for_and_used(page: Page, models: Path, tmp_path: Path) -> None:
    env = {"LONGBOAT_SERVE_TOKEN": "open-sesame"}
    with serving(tmp_path, models / "words", "--no-grpc", env=env) as running:
        page.goto(f"http://127.0.0.1:{running.port}/models/words")
        page.get_by_role("textbox").fill("good")
        page.keyboard.press("Control+Enter")
        field = page.get_by_label("The server asks for a token")
        expect(field).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("A token is needed")
        expect(field).to_be_focused()
        page.keyboard.type("open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#headline")).to_contain_text("good")
        expect(field).to_be_hidden()


@pytest.mark.parametrize("name", [*KINDS, ""])
def test_nothing_is_loaded_from_elsewhere_and_nothing_complains(
    page: Page, watched: Watched, site: str, name: str
) -> None:
    page.goto(f"{site}/models/{name}" if name else site)
    page.get_by_role("heading", level=1).wait_for()
    assert all(url.startswith((site, "data:")) for url in watched.asked)
    assert watched.complaints == []


def test_what_a_model_says_of_itself_cannot_run_in_its_page(page: Page, watched: Watched, site: str) -> None:
    for path in ("/models/hostile", "/"):
        page.goto(site + path)
        expect(page.get_by_text("<script>").first).to_be_visible()
        assert page.evaluate("window.hacked") is None
    page.goto(site + "/models/words")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.x = 1'}))"
    )
    assert page.evaluate("window.x") is None, "the page's own policy stops what was put in later"
    assert any("Content Security Policy" in each for each in watched.complaints)


@pytest.mark.parametrize("name", KINDS)
def test_a_phone_shows_all_of_it(page: Page, site: str, name: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{site}/models/{name}")
    page.get_by_role("button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    small: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("button, textarea, select")].filter((e) => e.offsetParent
        && e.getBoundingClientRect().height < 40).map((e) => e.textContent)"""
    )
    assert small == [], "a finger needs 40 pixels"


CONTRAST = """() => {
  const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (e) => { while (e) { const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; e = e.parentElement; } return [255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter((e) => e.offsetParent && !e.matches("script, canvas")
    && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
      const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 80)]; }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["words", "digits", "table", "logarithm"])
def test_every_text_stands_out_from_what_is_behind_it(page: Page, site: str, name: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site}/models/{name}")
    if name == "words":
        page.get_by_role("textbox").fill("good bad")
        page.get_by_role("button", name="Ask the model").click()
        page.locator("#why").wait_for()
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("name", KINDS)
def test_a_screen_reader_finds_a_name_for_all_that_can_be_used(page: Page, site: str, name: str) -> None:
    page.goto(f"{site}/models/{name}")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    roles = {"button", "textbox", "combobox", "checkbox", "spinbutton", "link", "application", "list"}
    used = [node for node in tree["nodes"] if not node["ignored"] and node["role"]["value"] in roles]
    assert len(used) >= 3
    nameless = [n["role"]["value"] for n in used if n["role"]["value"] != "list" and not n["name"].get("value")]
    assert nameless == []
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1


def test_bars_do_not_move_for_who_wants_no_motion(page: Page, site: str) -> None:
    for wish, seconds in (("no-preference", "0.25s"), ("reduce", "0s")):
        page.emulate_media(reduced_motion="reduce" if wish == "reduce" else "no-preference")
        page.goto(site + "/models/words")
        page.get_by_role("textbox").fill("good")
        page.keyboard.press("Control+Enter")
        fill = page.locator("#bars .fill").first
        fill.wait_for(state="attached")
        assert fill.evaluate("each => getComputedStyle(each).transitionDuration") == seconds


def test_the_list_leads_to_every_model(page: Page, site: str) -> None:
    page.goto(site)
    page.get_by_role("link", name="Digits").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Digits")
    page.get_by_role("link", name="All models").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")


def thousand(directory: Path) -> None:
    """Two by two colour pixels; class n is n times as likely as their mean is bright."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floats"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["mean", "last"], ["column"]),
            helper.make_node("Mul", ["column", "slope"], ["logits"]),
        ],
        "thousand",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["rows", 2, 2, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 1000])],
        [
            numpy_helper.from_array(np.array([1]), "last"),
            numpy_helper.from_array(np.arange(1000, dtype=np.float32)[None] / 1000, "slope"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    labels = [f"class {number}" for number in range(1000)]
    examples = [bundle.Example({"image": [[[9, 9, 9]] * 2] * 2}, labels[-1])]
    bundle.save(directory, model, kind="image", labels=labels, examples=examples)


def test_of_a_thousand_classes_the_ten_likeliest_are_shown(page: Page, tmp_path: Path) -> None:
    thousand(tmp_path / "thousand")
    with serving(tmp_path, tmp_path / "thousand", "--no-grpc") as running:
        page.goto(f"http://127.0.0.1:{running.port}/models/thousand")
        page.get_by_role("button", name="Sample 1, true label class 999").click()
        expect(page.locator("#headline")).to_contain_text("class 999")
        assert [label for label, _ in shown(page)] == [f"class {number}" for number in range(999, 989, -1)]
        expect(page.get_by_role("list", name="The 10 likeliest of 1000 answers")).to_be_visible()
        expect(page.locator("#paper")).to_be_hidden()
