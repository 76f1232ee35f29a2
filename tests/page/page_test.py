#!/usr/bin/env python3
"""The page at / as someone uses it, in Chromium. Usage: page_test.py INVAR [--pictures DIRECTORY] [unittest arguments]

Exits with 77 where Chromium, its driver or Selenium are not installed."""
import base64
import hashlib
import json
import pathlib
import re
import sys
import tempfile
import time
import unittest

from browser import BrowserTest, By, Keys, Valve
from scripted_server import POLICY
from selenium.webdriver.common.action_chains import ActionChains
from served import Served
from story import MANY, StoryTest

INVAR = None  # the program; set by main


class PageTest(StoryTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-page-")
        cls.journal = str(pathlib.Path(cls.folder.name) / "journal")
        cls.server = Served(INVAR, "--lab", "--journal", cls.journal, "--receipt-key", cls.journal + ".pem", *MANY)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.stop()
        cls.folder.cleanup()

    def setUp(self):
        super().setUp()
        self.open()

    # ---- The page itself ----

    def test_weight_paint_and_nothing_from_outside(self):
        status, headers, page = self.server.ask("GET", "/")
        self.assertEqual(status, 200)
        # The style stands in the page, and the policy allows this one by its hash.
        style = re.search(rb"<style>(.*?)</style>", page, re.S)[1]
        own = base64.b64encode(hashlib.sha256(style).digest()).decode()
        self.assertEqual(headers["Content-Security-Policy"], POLICY.replace("style-src 'self'", f"style-src 'self' 'sha256-{own}'"))
        self.assertEqual(self.server.ask("GET", "/docs")[1]["Content-Security-Policy"], POLICY)
        self.assertNotIn("unsafe", POLICY)
        self.assertEqual(headers["X-DNS-Prefetch-Control"], "off")
        names = self.run_js("return performance.getEntriesByType('resource').map((e) => new URL(e.name)).filter((u) => u.pathname.startsWith('/page/')).map((u) => u.pathname)")
        weight = len(page)
        for name in sorted(set(names)):
            status, _, data = self.server.ask("GET", name)
            self.assertEqual(status, 200, name)
            weight += len(data)
            links = set(re.findall(rb"(?:https?:)?//[a-z][\w.]*", data)) - {b"http://www.w3.org"}
            self.assertEqual({link for link in links if link.startswith(b"http")}, set(), name)
        self.assertGreater(len(set(names)), 7)
        paints = self.first_paints(most=20, bar=200)
        print(f"\npage: {weight / 1000:.1f} kB, first paint after {', '.join(f'{paint:.0f}' for paint in paints)} ms")
        self.assertLess(weight, 150_000)
        # A machine that does nothing else meets the bar each time; one that does has twenty tries.
        self.assertLessEqual(min(paints), 200)
        self.assertLess(paints[0], 1000)
        hosts = self.run_js("return [...new Set(performance.getEntriesByType('resource').map((e) => new URL(e.name).host))]")
        self.assertEqual(hosts, [f"127.0.0.1:{self.server.port}"])
        self.assertEqual(self.server.ask("GET", "/page/none.js")[0], 404)
        self.assertEqual(self.server.ask("POST", "/")[0], 405)
        self.no_faults()

    def first_paints(self, most, bar):
        """The milliseconds to the first paint of pages that are loaded with nothing cached, until one meets the bar."""
        paints = []
        while len(paints) < most and min(paints, default=bar + 1) > bar:
            self.browser.execute_cdp_cmd("Network.clearBrowserCache", {})
            self.open()
            paints.append(self.until(lambda: self.run_js("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"), "the first paint"))
        return paints

    def test_labels_contrast_and_room_in_both_themes(self):
        for view in ["chat", "bits", "engine", "check"]:
            self.open(view)
            nameless = self.run_js("""return [...document.querySelectorAll('input, select, textarea, button, canvas')].filter((e) =>
                !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).map((e) => e.outerHTML)""")
            self.assertEqual(nameless, [], view)
            for theme in ["light", "dark"]:
                self.theme(theme)
                for width, height in [(1280, 860), (375, 740)]:
                    self.size(width, height)
                    time.sleep(0.1)
                    self.assertLessEqual(self.run_js("return document.documentElement.scrollWidth"), width, (view, width))
                    hidden = self.run_js("const t = document.querySelector('.tabs'); return t.scrollWidth - t.clientWidth")
                    self.assertLessEqual(hidden, 0, "every view's tab is seen")
                    self.picture(f"{view}-{theme}-{width}")
                self.size(1280, 860)
                self.assertEqual(self.low_contrast(), [], (view, theme))
        self.no_faults()

    def test_keyboard_reaches_the_views_and_the_theme(self):
        self.find("tab-chat").send_keys(Keys.ARROW_RIGHT)
        self.assertTrue(self.find("bits").is_displayed())
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("id"), "tab-bits")
        self.find("tab-bits").send_keys(Keys.END)
        self.assertTrue(self.find("check").is_displayed())
        self.find("tab-check").send_keys(Keys.ARROW_LEFT)
        self.assertTrue(self.find("engine").is_displayed())
        self.find("tab-engine").send_keys(Keys.ARROW_RIGHT, Keys.NULL)
        self.find("tab-check").send_keys(Keys.ARROW_RIGHT)
        self.assertTrue(self.find("chat").is_displayed())
        seen = set()
        for _ in range(3):
            self.find("theme").send_keys(Keys.ENTER)
            seen.add((self.find("theme").text, self.run_js("return getComputedStyle(document.body).backgroundColor")))
        self.assertEqual({name for name, _ in seen}, {"Auto", "Light", "Dark"})
        self.assertEqual(len({colour for _, colour in seen}), 2)
        self.no_faults()

    def test_the_reference_is_shown_at_docs(self):
        self.browser.get(f"http://127.0.0.1:{self.server.port}/docs")
        self.until(lambda: self.all(".operation"))
        paths = self.server.ask("GET", "/openapi.json")[2]["paths"]
        self.assertEqual(len(self.all(".operation")), sum(map(len, paths.values())))
        self.assertIn("max_tokens", self.find("post-v1-chat-completions").text)
        for theme in ["light", "dark"]:
            self.theme(theme)
            self.assertEqual(self.low_contrast(), [], theme)
            self.picture(f"docs-{theme}")
        self.size(375, 740)
        self.assertLessEqual(self.run_js("return document.documentElement.scrollWidth"), 375)
        self.no_faults()

    def test_every_endpoint_of_the_reference_is_there(self):
        for path, methods in self.server.ask("GET", "/openapi.json")[2]["paths"].items():
            at = path.replace("{model}", "m").replace("{id}", "none")
            _, headers, _ = self.server.ask("PATCH", at)  # nobody has it
            allowed = {method.strip().lower() for method in headers["Allow"].split(",")}
            self.assertLessEqual(set(methods), allowed, path)

    # ---- Chat ----

    def test_chat_streams_repeats_branches_and_shows_tokens(self):
        facts = self.ask("Say something.", max_tokens=30, temperature=1)
        self.assertRegex(facts, r"30 tokens .* seed \d+ .* cut at max tokens .* [0-9a-f]{12}")
        text = self.all(".message.assistant .text")[0].text
        self.click("Repeat")
        self.assertIn("same bits as before", self.finished())
        self.assertEqual(self.all(".branches")[0].text.replace("\n", " "), "‹2 / 2›")
        self.assertEqual(self.all(".message.assistant .text")[0].text, text)
        self.click("Another")
        self.assertNotIn("same bits", self.finished())
        self.assertIn("3 / 3", self.all(".branches")[0].text)
        self.all('[aria-label="Earlier branch"]')[0].click()
        self.assertIn("2 / 3", self.all(".branches")[0].text)
        self.find("show-tokens").click()
        spans = self.all(".tokens .t")
        self.assertEqual(len(spans), 30)
        ActionChains(self.browser).move_to_element(spans[3]).perform()
        rows = self.until(lambda: self.all("#tip tbody tr"))
        self.assertIn(len(rows), [5, 6])
        self.assertEqual(len(self.all("#tip .own")), 1)
        self.picture("tokens")
        spans[3].click()
        self.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.browser.switch_to.active_element, spans[4])
        self.find("show-tokens").click()
        self.click("Edit")
        area = self.all(".message.user textarea")[0]
        area.clear()
        area.send_keys("Say something else.", Keys.ENTER)
        self.until(lambda: self.all(".message.user .text")[0].text == "Say something else.")
        self.finished()
        self.assertIn("2 / 2", self.all(".message.user .branches")[0].text)
        self.browser.refresh()  # the conversation is still there
        self.until(lambda: self.all(".message.user .text")[0].text == "Say something else.")
        self.click("New chat")
        self.assertEqual(self.all(".message"), [])
        self.no_faults()

    def test_parameters_count(self):
        one = self.ask("Parameters.", max_tokens=12, seed=5, temperature=0.7)
        self.assertIn("seed 5", one)
        two = self.ask("Parameters.", max_tokens=7, seed=5, temperature=0)
        self.assertIn("7 tokens", two)
        self.set("seed", "")
        self.find("plain").click()
        self.assertIn("9 tokens", self.ask("Goes on", max_tokens=9))
        self.find("plain").click()
        self.ask("Too long.", max_tokens=100000)
        self.assertIn("exceed the context", self.all(".message .error")[-1].text)
        self.no_faults()

    def test_stop_ends_an_answer(self):
        server = self.serve_story()
        self.begin_behind_valve("Tell me a story.", server)
        self.find("prompt").send_keys(Keys.ESCAPE)
        self.assertIn("stopped", self.finished())
        server.wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
        self.no_faults()

    def test_a_long_answer_loses_no_token_and_costs_little(self):
        self.browser.execute_cdp_cmd("Performance.enable", {})
        for id, value in {"max_tokens": 1000, "temperature": 1}.items():
            self.set(id, value)
        for show_tokens in [False, True]:
            self.click("New chat")
            if show_tokens:
                self.find("show-tokens").click()
            before = self.processor_seconds()
            seconds = self.ask_undisturbed("Long.")
            thread, process = (after - b for after, b in zip(self.processor_seconds(), before))
            tokens = self.until(lambda: next(node for node in reversed(self.kept()) if len(node["tokens"]) == 1000), "the kept answer")
            facts = self.all(".facts")[-1].text
            self.assertEqual(len(tokens["tokens"]), int(re.match(r"(\d+) tokens", facts)[1]))
            self.assertEqual(len(tokens["tokens"]), 1000)
            print(f"\npage: {facts.split(' · ')[:2]} in {seconds:.2f} s, tokens {'shown' if show_tokens else 'not shown'}: page's thread "
                  f"{1000 * thread:.0f} ms, {100 * thread / seconds:.0f} % of a core; its process {100 * process / seconds:.0f} %")
            self.assertLess(thread, 0.2)  # 20 % of a core at 1000 tokens a second
        self.no_faults()

    def begin_behind_valve(self, prompt, server, **fields):
        """Asks, and returns when the answer has begun; it does not end before the valve is cut."""
        valve = Valve(server.port)
        self.addCleanup(valve.close)
        self.open(server=valve)
        for id, value in fields.items():
            self.set(id, value)
        self.find("prompt").send_keys(prompt, Keys.ENTER)
        self.until(lambda: self.all(".message.assistant .text")[-1].text, "some text")
        return valve

    def kill_in_mid_answer(self, prompt, server, **fields):
        valve = self.begin_behind_valve(prompt, server, **fields)
        server.process.kill()
        server.stop()
        valve.cut()

    def test_an_answer_goes_on_after_the_server_was_killed(self):
        journal = str(pathlib.Path(self.folder.name) / "journal-of-story")
        server = self.serve_story("--journal", journal)
        self.kill_in_mid_answer("Tell me a story.", server, max_tokens=400, seed=77)
        self.until(lambda: "The server does not answer" in self.text("chat-state"))
        cut = self.all(".message.assistant .text")[-1].text
        self.serve_story("--journal", journal, port=server.port)
        self.finished()
        text = self.all(".message.assistant .text")[-1].text
        self.assertTrue(text.startswith(cut) and len(text) > len(cut), (cut, text))
        self.click("Repeat")
        self.assertIn("same bits as before", self.finished())
        self.assertEqual(self.all(".message.assistant .text")[-1].text, text)
        self.no_faults()

    def test_without_a_journal_a_lost_answer_says_so(self):
        self.kill_in_mid_answer("Tell me a story.", self.serve_story())
        self.until(lambda: self.all(".message .error"))
        self.assertIn("without --journal", self.all(".message .error")[-1].text)

    def begin_and_leave(self, server, **fields):
        """Asks, and leaves the page in the middle of the answer. Returns the valve, open, and what stood there."""
        valve = self.begin_behind_valve("Tell me a story.", server, **fields)
        text = self.all(".message.assistant .text")[-1].text
        self.until(lambda: any(node["meta"].get("run", {}).get("id") for node in self.kept()))
        self.browser.get("about:blank")
        valve.is_open = True
        self.open(server=valve)
        return text

    def test_an_answer_goes_on_after_the_page_was_loaded_anew(self):
        server = self.serve_story("--journal", str(pathlib.Path(self.folder.name) / "journal-of-page"))
        cut = self.begin_and_leave(server, max_tokens=400, seed=77)
        self.until(lambda: self.all(".facts"))
        self.finished()
        text = self.all(".message.assistant .text")[-1].text
        self.assertTrue(text.startswith(cut) and len(text) > len(cut), (cut, text))
        self.click("Repeat")
        self.assertIn("same bits as before", self.finished())
        self.no_faults()

    def test_without_a_journal_an_answer_that_was_left_says_so_and_comes_again(self):
        server = self.serve_story()
        cut = self.begin_and_leave(server, max_tokens=400)
        self.until(lambda: "without --journal" in self.all(".message .error")[-1].text)
        self.click("Repeat")
        self.finished()
        self.assertTrue(self.all(".message.assistant .text")[-1].text.startswith(cut), "the same seed, the same words")
        self.no_faults()

    def test_a_full_context_is_said(self):
        self.ask("word " * 1500)
        self.assertIn("The context is full.", self.all(".message .error")[-1].text)
        self.assertIn("into the context of 1152", self.all(".message .error")[-1].text)
        self.no_faults()

    def test_a_key_is_asked_for(self):
        server = Served(INVAR, "--api-key", "secret")
        self.addCleanup(server.stop)
        self.browser.get(f"http://127.0.0.1:{server.port}/")
        self.until(lambda: self.find("key-dialog").is_displayed())
        self.assertIn("asks for a key", self.text("notice"))
        self.find("key").send_keys("wrong", Keys.ENTER)
        self.until(lambda: not self.text("identity") and self.find("key-dialog").is_displayed())
        self.find("key").clear()
        self.find("key").send_keys("secret", Keys.ENTER)
        self.until(lambda: self.text("identity"))
        self.assertIn("4 tokens", self.ask("Hello.", max_tokens=4))

    # ---- Same bits ----

    def test_the_same_bits_are_one_bin_and_the_baseline_has_many(self):
        self.open("bits")
        for id, value in {"bits-count": 20, "bits-tokens": 12, "bits-neighbours": 4, "bits-parallel": 6}.items():
            self.set(id, value)
        self.find("bits-run").click()
        self.until(lambda: self.find("bits-run").text == "Stop")
        self.until(lambda: self.find("bits-run").text == "Run", "the run's end")
        boards = self.all(".board")
        self.assertEqual(len(boards), 2)
        self.assertIn("1 bin of 20 answers", boards[0].find_element(By.CLASS_NAME, "verdict").text.replace("\n", " "))
        bins = int(boards[1].find_element(By.CLASS_NAME, "huge").text)
        self.assertGreater(bins, 1, "the control must differ")
        self.assertEqual(len(self.all(".one .bins li")), 1)
        ways = {cell.get_attribute("title") for cell in boards[0].find_elements(By.CSS_SELECTOR, ".cells i")}
        self.assertEqual({way.split(": ")[1] for way in ways},
                         {"policy sarathi", "policy sarathi, steps of 288 rows, drafts by ngram, 2 ranks", "policy vllm, drafts by suffix, 4 ranks",
                          "policy simple-chunking, steps of 320 rows, drafts by lookahead", "policy faster-transformer, drafts by early_exit, 2 ranks"})
        lab = self.server.ask("GET", "/v1/engine")[2]["lab"]
        self.assertEqual([lab[name] for name in ["policy", "arithmetic", "drafter", "ranks"]], ["sarathi", "portable", "none", 1])
        self.picture("bits")
        self.find("bits-run").click()  # and stopped
        self.until(lambda: self.all(".b0"))
        self.find("bits-run").click()
        self.until(lambda: "Stopped" in self.text("bits-state"))
        self.no_faults()

    # ---- Engine ----

    def test_the_engine_is_seen_and_its_policy_changed(self):
        self.open("engine")
        for id, value in {"load-streams": 6, "load-prompt": 500, "load-pause": 0.3}.items():
            self.set(id, value)
        self.find("load").click()
        colours = lambda: self.run_js("""const c = document.getElementById('rows'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            const at = {}; for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) { const k = [d[i], d[i+1], d[i+2]].join(); at[k] = (at[k] ?? 0) + 1; } return at""")
        # The colours of decode and prompt rows (--decode, --prompt).
        self.until(lambda: {"0,114,178", "230,159,0"} <= set(colours()), "rows of both kinds")
        tiles = self.until(lambda: self.run_js("return [...document.querySelectorAll('.tile')].map((tile) => tile.textContent)"))
        self.assertIn("Answering", tiles[0])
        stalls = self.server.metric("invar:stalled_rows_total")
        self.set("policy", "vllm")
        self.find("apply").click()
        self.until(lambda: "Now vllm" in self.text("engine-state"), "the policy")
        self.until(lambda: self.server.metric("invar:stalled_rows_total") > stalls + 5, "stalls")
        time.sleep(0.5)
        self.picture("engine")
        self.assertIn("no drafts", self.text("tiles"))
        self.set("policy", "sarathi")
        self.set("drafter", "early_exit")
        self.find("apply").click()
        self.until(lambda: "Now sarathi, drafts by early_exit" in self.text("engine-state"), "the policy and the drafter")
        self.until(lambda: re.search(r"Drafts accepted\d+ %\d+ of \d+", self.text("tiles")), "accepted drafts")
        self.set("drafter", "none")
        self.find("apply").click()
        self.until(lambda: self.text("engine-state") == "Now sarathi.", "plain decoding")
        self.find("load").click()
        self.server.wait_until(lambda: self.server.metric("vllm:num_requests_running") == 0)
        self.no_faults()


if __name__ == "__main__":
    StoryTest.program = INVAR = sys.argv.pop(1)
    if "--pictures" in sys.argv:
        at = sys.argv.index("--pictures")
        BrowserTest.pictures = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
