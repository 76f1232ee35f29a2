#!/usr/bin/env python3
"""The page's chat in Chromium with a server whose answers the test writes: Markdown, thoughts, calls, conversations, files, a server that
is away, a full context. Usage: chat_test.py [--pictures DIRECTORY] [unittest arguments]

Exits with 77 where Chromium, its driver or Selenium are not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from browser import AXE, BrowserTest, By, Keys
from scripted_server import Answer, ScriptedServer
from selenium.webdriver.common.action_chains import ActionChains

HERE = pathlib.Path(__file__).parent
FULL = {"message": "the prompt has 5000 tokens; at most 4095 fit with one token of answer into the context of 4096", "code": "context_length_exceeded", "param": "messages"}


def by_node(script):
    """The output of a script that has the tests' modules at hand."""
    return json.loads(subprocess.run(["node", "--input-type=module", "-e", f"import * as hostile from {json.dumps((HERE / 'hostile.mjs').as_uri())};\n{script}"],
                                     check=True, capture_output=True, timeout=60).stdout)


class ChatTest(BrowserTest):
    @classmethod
    def setUpClass(cls):
        cls.server = ScriptedServer()
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.stop()

    def begin(self, *answers, **engine):
        """Opens the page of a server that has these answers."""
        self.server.answers, self.server.asked = list(answers) or [Answer("Hello.")], []
        self.server.engine.update({"context": 4096, "journal": False, **engine})
        self.open()

    def titles(self):
        return self.run_js("return [...document.querySelectorAll('.talk-name span')].map((one) => one.textContent)")

    def say(self, text):
        self.find("prompt").send_keys(text, Keys.ENTER)
        return self.finished()

    # ---- What an answer may be ----

    def test_markdown_thoughts_and_copied_code(self):
        self.begin(Answer("# Title\n\n**Bold** and `code`.\n\n```python\ndef f(): return 1\n```\n\n| a | b |\n|---|---|\n| 1 | $x^2$ |\n", thought="First I think.\nThen I know."))
        self.say("Show it.")
        text = self.all(".message.assistant .text")[0]
        for selector in ["h2", "strong", "table td math msup", "pre .hf", ".code button"]:
            self.assertEqual(len(text.find_elements(By.CSS_SELECTOR, selector)), 1, selector)
        thoughts = self.all(".thoughts")[0]
        self.assertIsNone(thoughts.get_attribute("open"), "thoughts are folded")
        self.assertIn("6 words", thoughts.text)
        thoughts.find_element(By.TAG_NAME, "summary").click()
        self.assertIn("Then I know.", thoughts.text)
        self.run_js("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        text.find_element(By.CSS_SELECTOR, ".code button").click()
        self.until(lambda: self.run_js("return window.copied") == "def f(): return 1")
        self.browser.refresh()
        self.until(lambda: self.all(".message.assistant h2"))
        self.assertIn("First I think.", self.run_js("return document.querySelector('.thought').textContent"), "kept")
        self.no_faults()

    def test_calls_are_shown_and_their_results_go_on(self):
        self.begin(Answer("I ask.", calls=[("weather", '{"city": "Paris"}'), ("time", "{}")], finish="tool_calls"), Answer("It is warm."))
        self.set("tools", '{"name": "weather", "parameters": {"type": "object"}}')
        self.say("How is it there?")
        self.assertEqual([one.text for one in self.all(".call summary")], ["Calls weather", "Calls time"])
        self.assertIn('"city": "Paris"', self.all(".call pre")[0].text)
        for area, words in zip(self.all(".results textarea"), ["21 C", "noon"]):
            area.send_keys(words)
        self.click("Send results")
        self.until(lambda: "It is warm." in self.all(".message.assistant")[-1].text)
        first, second = self.server.requests()
        self.assertEqual(first["tools"], [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
        self.assertEqual([one["role"] for one in second["messages"]], ["user", "assistant", "tool", "tool"])
        self.assertEqual(second["messages"][1]["tool_calls"][0], {"id": "call-0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}})
        self.assertEqual(second["messages"][3], {"role": "tool", "tool_call_id": "call-1", "content": "noon"})
        self.set("tools", "{")
        self.find("prompt").send_keys("And now?", Keys.ENTER)
        self.until(lambda: "Tools: expected JSON" in self.all(".message .error")[-1].text)
        self.no_faults()

    def hostile(self, count, as_html):
        """[elements and links that run or load something, requests and refusals of requests] of so many texts in the page."""
        return self.browser.execute_async_script("""
            const [count, asHtml, done] = arguments, box = document.body.appendChild(document.createElement('div'));
            const run = async () => {
              const [{ generator }, { GrowingMarkdown }, { patch }] = await Promise.all(['/hostile.mjs', '/page/markdown.js', '/page/tree.js'].map((name) => import(name)));
              const { next, text } = generator(540);
              let loads = 0, found = 0;
              new PerformanceObserver((list) => { loads += list.getEntries().filter((e) => !/[/](page|health|props|hostile)/.test(e.name)).length; }).observe({ type: 'resource' });
              document.addEventListener('securitypolicyviolation', () => ++loads);
              window.alert = () => ++found;
              for (let i = 0; i < count; ++i) {
                const all = text(), one = box.appendChild(document.createElement('div'));
                if (asHtml) one.innerHTML = all;
                else { const growing = new GrowingMarkdown(); for (let at = 0; at < all.length;) { const to = at + 1 + next(40); patch(one, growing.append(all.slice(at, to))); at = to; } }
                found += one.querySelectorAll('script, img, iframe, object, embed, link, style, base, form, input, svg, [onerror], [onload], [src], [style]').length;
                found += [...one.querySelectorAll('a')].filter((a) => !/^(https?|mailto):/.test(a.protocol)).length;
                if (i % 100 === 99) { box.replaceChildren(); await new Promise((go) => setTimeout(go)); }
              }
              await new Promise((go) => setTimeout(go, 300));
              return [found, loads];
            };
            run().then(done, (error) => done([String(error), 0])).finally(() => box.remove());""", count, as_html)

    def test_hostile_texts_make_no_script_and_ask_for_nothing(self):
        self.begin()
        self.browser.set_script_timeout(120)
        self.assertEqual(self.hostile(10_000, as_html=False), [0, 0])
        found, loads = self.hostile(300, as_html=True)
        self.assertGreater(found, 300, "the control: as HTML the same texts make elements")
        self.assertGreater(loads, 50, "the control: as HTML the same texts ask for something")
        self.browser.get_log("browser")  # has what the control was refused

    def test_a_stream_of_markdown_costs_little(self):
        text = "".join(by_node("process.stdout.write(JSON.stringify(Array.from({ length: 40 }, (_, i) => hostile.kLong[i % hostile.kLong.length])))"))[:4000]
        self.browser.execute_cdp_cmd("Performance.enable", {})
        # 1000 tokens with their alternatives, 100 a second.
        shares = {}
        for name, pieces in [("as it comes", [text[i:i + 4] for i in range(0, 4000, 4)]), ("all at its end", [""] * 999 + [text])]:
            self.begin(Answer(pieces=pieces, pause=0.01, usage=(10, 1000), logprobs=True))
            before = self.processor_seconds()
            seconds = self.ask_undisturbed("Long.")
            thread, process = (after - b for after, b in zip(self.processor_seconds(), before))
            print(f"\n1000 tokens of Markdown in {seconds:.1f} s, {name}: page's thread {100 * thread / seconds:.1f} % of a core, its process {100 * process / seconds:.1f} %")
            self.assertGreater(self.run_js("return document.querySelectorAll('.message.assistant table').length"), 2)
            self.assertGreater(seconds, 9)
            shares[name] = thread / seconds
        # The bar is 0.05 on a machine that does nothing else, where most of it is the stream's own.
        self.assertLess(shares["as it comes"], min(0.15, 2 * shares["all at its end"]))
        self.no_faults()

    # ---- Conversations ----

    def test_conversations_are_listed_renamed_searched_deleted_and_undone(self):
        self.begin(Answer("An owl flew."))
        self.say("About owls")
        self.click("New chat")
        self.server.answers = [Answer("A fox ran.")]
        self.say("About foxes")
        self.assertEqual(self.titles(), ["About foxes", "About owls"])
        self.browser.refresh()
        self.until(lambda: self.titles() == ["About foxes", "About owls"])
        self.until(lambda: "A fox ran." in self.find("messages").text)
        self.find("talk-search").send_keys("owl FLEW")
        self.assertEqual(self.titles(), ["About owls"], "found by what the answer says")
        self.all(".talk-name")[0].click()
        self.until(lambda: "An owl flew." in self.find("messages").text)
        self.find("talk-search").clear()
        self.find("talk-search").send_keys(" ")
        self.click("Rename")
        self.until(lambda: self.find("name-dialog").is_displayed())
        self.find("name").clear()
        self.find("name").send_keys("Birds", Keys.ENTER)
        self.until(lambda: self.titles() == ["About foxes", "Birds"])
        self.click("Delete")
        self.until(lambda: self.titles() == ["About foxes"])
        self.assertEqual(self.all(".message"), [])
        self.assertEqual(self.browser.switch_to.active_element.text, "Undo")
        self.click("Undo")
        self.until(lambda: "Birds" in self.titles() and "An owl flew." in self.find("messages").text)
        self.browser.refresh()
        self.until(lambda: sorted(self.titles()) == ["About foxes", "Birds"])
        self.no_faults()

    def test_export_and_import_are_the_same_conversation(self):
        with tempfile.TemporaryDirectory() as folder:
            self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": folder})
            self.begin(Answer("One."), Answer("Two.", thought="Hm."))
            self.say("Count.")
            self.click("Another")
            self.until(lambda: "Two." in self.find("messages").text)
            shown = self.find("messages").text
            self.click("Export all")
            file = self.until(lambda: [*pathlib.Path(folder).glob("*.json")])[0]
            said = json.loads(file.read_text())
            self.assertEqual([one["title"] for one in said["conversations"]], ["Count."])
            self.forget()
            self.open()
            self.assertEqual(self.titles(), [])
            self.find("talk-import").send_keys(str(file))
            self.until(lambda: self.titles() == ["Count."])
            self.until(lambda: self.find("messages").text == shown)
            other = pathlib.Path(folder) / "chat.jsonx"
            for content, words in [("{", "expected a file of JSON"), ("{}", "or a chat's messages"), ('{"invar_conversations": 2}', "version 1, found 2"),
                                   ('{"invar_conversations": 1, "conversations": [{"messages": [{"id": 1, "parent": 7, "role": "user"}]}]}', "conversation 1"),
                                   ('[{"role": "wizard", "content": "x"}]', 'found "wizard"')]:
                other.write_text(content)
                self.find("talk-import").send_keys(str(other))
                self.until(lambda: words in self.text("toast"), words)
            other.write_text(json.dumps({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi <b>x</b>"}, {"role": "assistant", "content": "Hello **you**"}]}))
            self.find("talk-import").send_keys(str(other))
            self.until(lambda: self.all(".message.assistant strong"))
            self.assertEqual(self.find("system").get_attribute("value"), "Be kind.")
            self.assertEqual(len(self.titles()), 2)
            odd = {"id": 1, "parent": 0, "role": "assistant", "text": "Odd one.", "meta": {"hash": 5, "error": 5, "finish": {}}}
            other.write_text(json.dumps({"invar_conversations": 1, "conversations": [{"title": "Odd", "changed": 1e300, "messages": [odd]}]}))
            self.find("talk-import").send_keys(str(other))
            self.until(lambda: "Odd one." in self.find("messages").text)
            self.assertEqual(self.find("system").get_attribute("value"), "", "nobody else's prompt")
            self.browser.refresh()
            self.until(lambda: "Odd one." in self.find("messages").text and self.text("identity"))
        self.no_faults()

    def test_an_answer_comes_while_another_conversation_is_read(self):
        self.begin(Answer("Slow words. " * 30, pause=0.02))
        self.find("prompt").send_keys("Slowly", Keys.ENTER)
        self.until(lambda: "Slow words." in self.find("messages").text)
        self.click("New chat")
        self.server.answers = [Answer("Quick.")]
        self.say("Quickly")
        self.assertIn("answering", self.find("talk-list").text)
        self.until(lambda: "answering" not in self.find("talk-list").text)
        next(one for one in self.all(".talk-name") if "Slowly" in one.text).click()
        self.until(lambda: self.all(".message.assistant .text")[0].text.count("Slow words.") == 30)
        self.no_faults()

    def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(self):
        self.begin(Answer("Slow words. " * 60, pause=0.02))
        self.find("prompt").send_keys("Slowly", Keys.ENTER)
        self.until(lambda: "Slow words." in self.find("messages").text)
        self.click("Delete")
        self.until(lambda: self.titles() == [])
        self.assertFalse(self.find("stop").is_displayed())
        self.browser.refresh()
        self.until(lambda: self.text("identity"))
        self.assertEqual((self.titles(), self.all(".message")), ([], []))
        self.no_faults()

    def test_two_pages_of_a_browser_know_the_same_conversations(self):
        self.begin(Answer("One."))
        self.say("First")
        first = self.browser.current_window_handle
        self.browser.switch_to.new_window("tab")
        self.size(1280, 860)
        self.open()
        self.until(lambda: self.titles() == ["First"] and "One." in self.find("messages").text)
        self.click("New chat")
        self.server.answers = [Answer("Two.")]
        self.say("Second")
        self.browser.close()
        self.browser.switch_to.window(first)
        self.until(lambda: self.titles() == ["Second", "First"])
        self.assertIn("One.", self.find("messages").text, "what is read stays")
        self.no_faults()

    # ---- What goes with a message ----

    def test_system_prompt_presets_and_defaults(self):
        self.begin()
        self.until(lambda: self.find("temperature").get_attribute("placeholder") == "0.6")
        self.assertEqual([self.find(name).get_attribute("placeholder") for name in ["top_p", "top_k", "min_p"]], ["0.95", "20", "off"])
        self.set("system", "Speak like a pirate.")
        self.set("temperature", "0.9")
        self.click("Save as …")
        self.until(lambda: self.find("name-dialog").is_displayed())
        self.find("name").send_keys("Pirate", Keys.ENTER)
        self.until(lambda: self.find("preset").get_attribute("value") == "Pirate")
        self.set("preset", "Short answers")
        self.assertIn("few words", self.find("system").get_attribute("value"))
        self.assertEqual(self.find("temperature").get_attribute("value"), "")
        self.browser.refresh()
        self.until(lambda: self.text("identity"))
        self.set("preset", "Pirate")
        self.say("Hello")
        (request,) = self.server.requests()
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Speak like a pirate."})
        self.assertEqual((request["temperature"], "top_p" in request), (0.9, False), "what is not given is the model's")
        self.find("preset-remove").click()
        self.assertNotIn("Pirate", self.text("preset"))
        self.no_faults()

    def test_text_files_are_attached_and_others_refused(self):
        self.begin()
        with tempfile.TemporaryDirectory() as folder:
            text, image = pathlib.Path(folder) / "notes.md", pathlib.Path(folder) / "picture.png"
            text.write_text("A fence:\n```\ncode\n```\n")
            image.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
            self.find("attach").send_keys(str(image))
            self.until(lambda: "picture.png is no text file" in self.text("toast"))
            self.find("attach").send_keys(str(text))
            self.until(lambda: "notes.md" in self.text("attached"))
            self.say("Read it.")
        self.assertEqual(self.text("attached"), "")
        (request,) = self.server.requests()
        self.assertEqual(request["messages"][0]["content"], "File notes.md:\n````\nA fence:\n```\ncode\n```\n````\n\nRead it.")
        self.assertIn("notes.md", self.all(".message.user .file summary")[0].text)
        self.no_faults()

    # ---- Who reads it otherwise ----

    def test_axe_finds_nothing_in_both_themes_and_widths(self):
        if not AXE:
            self.skipTest("expected axe-core, of the Python package axe-playwright-python")
        self.begin(Answer("# A\n\n| a | b |\n|---|---|\n| 1 | $x$ |\n\n```js\nlet a = 1; // one\n```\n", thought="Hm."), Answer("Ask.", calls=[("f", "{}")], finish="tool_calls"))
        self.say("Show it.")
        self.say("And calls.")
        for theme in ["light", "dark"]:
            self.theme(theme)
            for width, height in [(1280, 860), (375, 740)]:
                self.size(width, height)
                for view in ["chat", "bits", "engine", "check"]:
                    self.find(f"tab-{view}").click()
                    self.assertEqual(self.axe(), [], (theme, width, view))
        self.find("tab-chat").click()
        self.run_js("document.querySelector('label[for=prompt]').remove()")
        self.run_js("document.getElementById('prompt').placeholder = ''")
        self.assertEqual([rule for rule, _ in self.axe()], ["label"], "the control")

    def test_the_keyboard_goes_in_the_order_of_reading(self):
        self.begin()
        self.say("Hello")
        order = []
        self.run_js("document.querySelector('.skip').focus()")
        for _ in range(60):
            place = self.run_js("const e = document.activeElement; return e.closest('#talks, .talk, #parameters')?.id || e.closest('.talk, header')?.className || e.tagName")
            if not order or order[-1] != place:
                order.append(place)
            ActionChains(self.browser).send_keys(Keys.TAB).perform()
        self.assertEqual(order[:5], ["A", "BUTTON", "talks", "talk", "parameters"], order)

    # ---- What goes wrong ----

    def test_a_server_that_is_away_is_said_and_asked_again(self):
        server = ScriptedServer(Answer("I am back."))
        self.open(server=server)
        server.stop()
        self.until(lambda: "has not answered since" in self.text("notice"))
        self.find("prompt").send_keys("Are you there?", Keys.ENTER)
        self.until(lambda: "The server does not answer" in self.text("chat-state"))
        again = ScriptedServer(Answer("I am back."), port=server.port)
        self.addCleanup(again.stop)
        self.finished()
        self.assertIn("I am back.", self.find("messages").text)
        self.until(lambda: not self.find("notice").is_displayed())

    def test_a_full_context_is_said_and_the_oldest_turns_left_out(self):
        self.begin(Answer("First answer. " * 40), Answer("Second."), Answer(error=(400, FULL)), Answer("It fits.", usage=(3000, 1096), finish="length"))
        for question in ["One", "Two", "Three"]:
            self.say(question)
        self.assertIn("The context is full. The prompt has 5000 tokens", self.all(".error")[-1].text)
        self.click("Leave out the oldest turns")
        self.until(lambda: "It fits." in self.find("messages").text)
        self.finished()
        messages = self.server.requests()[-1]["messages"]
        self.assertEqual([one["content"] for one in messages if one["role"] == "user"], ["Two", "Three"])
        self.assertIn("no longer sees", self.all(".divider")[0].text)
        self.assertIn("the context is full", self.all(".facts")[-1].text)
        self.assertIn("4,096 of 4,096 of the context", self.all(".facts")[-1].text)
        self.server.answers = [Answer("Goes on.")]
        self.say("Four")
        self.assertEqual([one["content"] for one in self.server.requests()[-1]["messages"] if one["role"] == "user"], ["Two", "Three", "Four"])
        self.no_faults()


if __name__ == "__main__":
    if "--pictures" in sys.argv:
        at = sys.argv.index("--pictures")
        BrowserTest.pictures = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
