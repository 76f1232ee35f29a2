#!/usr/bin/env python3
"""Several models behind one server: each answers as it does alone, within a budget of memory. Usage: many_models_test.py INVAR
[unittest arguments]"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from served import FAST, Served, children, events, fast_and

INVAR = None  # the program; set by main
FOLDER = None  # with the models a, b and c
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
ONE = ["--models-max", "1"]


def model(name):
    return str(pathlib.Path(FOLDER, name))


def setUpModule():
    global FOLDER, _folder
    _folder = tempfile.TemporaryDirectory(prefix="invar-many-")
    FOLDER = _folder.name
    for seed, name in enumerate("abc", 1):
        subprocess.run([INVAR, "make-model", model(name), "--seed", str(seed), "--max-positions", "65536"], check=True, capture_output=True)


def tearDownModule():
    _folder.cleanup()


def many(*flags, names="abc", long=False):
    """The server of these models; `long`: its contexts hold answers that do not end by themselves."""
    length = ["--max-model-len", "50000"] if long else []
    words = [f"{name}={model(name)}" for name in names]
    return Served(INVAR, command=[INVAR, "serve", *words, "--host", "127.0.0.1", "--port", "0", *fast_and([*length, *flags])])


def alone(name, *flags):
    return Served(INVAR, command=[INVAR, "serve", model(name), "--host", "127.0.0.1", "--port", "0", "--served-model-name", name,
                                  *fast_and(flags)])


def without_head(answer):
    """An answer without what each has of its own: the id, the time, and what the cache had."""
    return {key: value for key, value in answer.items() if key not in ("id", "created", "usage")}


def states(served):
    return {one["id"]: one["status"]["value"] for one in served.ask("GET", "/v1/models")[2]["data"]}


def loaded(served):
    return sorted(name for name, state in states(served).items() if state == "loaded")


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = many()
        cls.alone = {name: alone(name) for name in "ab"}

    @classmethod
    def tearDownClass(cls):
        for server in (cls.served, *cls.alone.values()):
            assert server.stop() == 0

    def asked(self, server, name, path, body):
        status, headers, answer = server.ask("POST", path, {**body, "model": name})
        self.assertEqual(status, 200, answer)
        return answer

    def test_each_model_answers_as_it_does_alone(self):
        completion = {"prompt": "once", "max_tokens": 12, "temperature": 1, "seed": 5, "logits_hash": True, "logprobs": 2}
        asked = [(COMPLETIONS, completion), (CHAT, {"messages": HI, "max_tokens": 9, "seed": 3, "temperature": 0.7}),
                 ("/v1/embeddings", {"input": "a text"}), ("/tokenize", {"prompt": "a text"})]
        for path, body in asked:
            with self.subTest(path):
                mine = {name: without_head(self.asked(self.served, name, path, body)) for name in "ab"}
                for name in "ab":
                    self.assertEqual(mine[name], without_head(self.asked(self.alone[name], name, path, body)))
                if path != "/tokenize":  # the control: another model has other answers
                    self.assertNotEqual({**mine["a"], "model": ""}, {**mine["b"], "model": ""})

    def test_a_stream_has_the_bytes_that_it_has_alone(self):
        body = {"prompt": "once", "max_tokens": 40, "seed": 5, "temperature": 1, "ignore_eos": True}
        for name in "ab":
            both = [events(server.stream(COMPLETIONS, model=name, **body)) for server in (self.served, self.alone[name])]
            self.assertGreater(len(both[0]), 10)
            self.assertEqual(*[[without_head(one) for one in all_events] for all_events in both])

    def test_messages_responses_and_ollamas_form_find_their_model(self):
        for name in "ab":
            message = self.served.post("/v1/messages", model=name, messages=HI, max_tokens=4)
            self.assertEqual(message["model"], name)
            self.assertEqual(self.served.post("/v1/responses", model=name, input="hi", max_output_tokens=16)["model"], name)
            for ollamas in (name, name + ":latest"):
                chat = self.served.post("/api/chat", model=ollamas, messages=HI, stream=False, options={"num_predict": 4})
                self.assertTrue(chat["done"])
            self.assertEqual(len(self.served.post("/v1/chat/completions", model=name + ":latest", messages=HI, max_tokens=4)["choices"]), 1)
            lines = self.served.ask("POST", "/api/generate", {"model": name, "prompt": "x", "options": {"num_predict": 4}})
            self.assertEqual(lines[1]["Content-Type"], "application/x-ndjson")

    def test_two_models_answer_at_the_same_time(self):
        found = {}

        def ask(name, seed):
            found[name, seed] = self.served.post(COMPLETIONS, model=name, prompt="x", max_tokens=30, temperature=1, seed=seed)["choices"]

        threads = [threading.Thread(target=ask, args=(name, seed)) for seed in range(6) for name in "ab"]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        for (name, seed), choices in found.items():
            self.assertEqual(choices, self.alone[name].post(COMPLETIONS, model=name, prompt="x", max_tokens=30, temperature=1,
                                                            seed=seed)["choices"])
        self.assertEqual(len(found), 12)

    def test_what_is_unknown_is_said(self):
        status, _, answer = self.served.ask("POST", CHAT, {"model": "d", "messages": HI})
        self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))
        self.assertEqual(answer["error"]["message"], 'the model "d" does not exist; there are a, b, c')
        for body in ({"messages": HI}, {"messages": HI, "model": None}):
            status, _, answer = self.served.ask("POST", CHAT, body)
            self.assertEqual(status, 400)
            self.assertIn("since several are served: a, b, c", answer["error"]["message"])
        self.assertEqual(self.served.ask("POST", CHAT, {"model": 3})[0], 400)
        self.assertEqual(self.served.ask("POST", CHAT, b"{")[0], 400)
        self.assertEqual(self.served.ask("GET", "/v1/models/d")[0], 404)
        self.assertEqual(self.served.ask("GET", "/nothing")[0], 404)
        self.assertEqual(self.served.ask("GET", CHAT)[0], 405)
        self.assertEqual(self.served.ask("POST", "/api/pull", {"model": "x"})[0], 400)

    def test_a_refusal_is_the_models_own(self):
        body = {"messages": HI, "max_tokens": 4, "temperature": -1}
        both = [server.ask("POST", CHAT, {**body, "model": "a"}) for server in (self.served, self.alone["a"])]
        self.assertEqual(both[0][0], 400)
        self.assertEqual(both[0][2], both[1][2])

    def test_lists_say_what_is_loaded(self):
        self.served.post(COMPLETIONS, model="a", prompt="x", max_tokens=1)
        status, _, one = self.served.ask("GET", "/v1/models/a")
        self.assertEqual((status, one["status"]["value"]), (200, "loaded"))
        mine = self.alone["a"].ask("GET", "/v1/models/a")[2]
        for field in ("system_fingerprint", "capabilities", "max_model_len", "meta"):
            self.assertEqual(one[field], mine[field])
        self.assertEqual(set(states(self.served)), set("abc"))
        tags, listed = (self.served.ask("GET", path)[2] for path in ("/api/tags", "/v1/models"))
        self.assertEqual({one["name"] for one in tags["models"]}, {"a:latest", "b:latest", "c:latest"})
        self.assertEqual((listed["object"], tags.get("object")), ("list", None))
        self.assertIn("a:latest", {one["name"] for one in self.served.ask("GET", "/api/ps")[2]["models"]})
        self.assertEqual(self.served.ask("GET", "/health")[0], 200)
        self.assertEqual(self.served.ask("GET", "/")[0], 200)

    def test_metrics_are_the_servers_or_a_models(self):
        self.served.post(COMPLETIONS, model="a", prompt="x", max_tokens=1)
        text = self.served.ask("GET", "/metrics")[2].decode()
        self.assertRegex(text, r'invar:model_loaded\{model_name="a"\} 1')
        self.assertIn("vllm:num_requests_running", self.served.ask("GET", "/metrics?model=a")[2].decode())

    def test_a_head_request_has_no_body(self):
        status, headers, body = self.served.ask("HEAD", "/v1/models/a")
        self.assertEqual((status, body), (200, b""))


class Room(unittest.TestCase):
    def test_the_least_recently_used_one_makes_room(self):
        served = many("--models-max", "2")
        self.assertEqual(set(states(served).values()), {"unloaded"})
        self.assertEqual(served.ask("GET", "/v1/models/a")[2]["status"]["value"], "unloaded")
        first = served.post(COMPLETIONS, model="a", prompt="x", max_tokens=4, temperature=0)["choices"]
        for name in "bac":
            served.post(COMPLETIONS, model=name, prompt="x", max_tokens=4)
        self.assertEqual(loaded(served), ["a", "c"])
        served.post(COMPLETIONS, model="b", prompt="x", max_tokens=4)
        self.assertEqual(loaded(served), ["b", "c"])
        self.assertEqual(served.post(COMPLETIONS, model="a", prompt="x", max_tokens=4, temperature=0)["choices"], first)
        self.assertEqual(len(children(served.process.pid)), 2)
        self.assertEqual(served.stop(), 0)

    def test_a_budget_of_memory_bounds_them(self):
        served = many("--models-memory", "0.6")  # one takes 0.1 GiB of cache and 0.25 beside it
        for name in "abc":
            served.post(COMPLETIONS, model=name, prompt="x", max_tokens=4)
            self.assertEqual(loaded(served), [name])
        self.assertEqual(served.stop(), 0)
        with self.assertRaises(AssertionError) as caught:
            many("--models-memory", "0.3")
        self.assertIn("all models together may take 0.30 (--models-memory)", str(caught.exception))

    def test_a_model_that_answers_is_not_put_away(self):
        served = many(*ONE, long=True)
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps({"model": "a", "prompt": "x", "max_tokens": 49000, "ignore_eos": True,
                                                            "stream": True}))
        reply = connection.getresponse()
        reply.read(1)
        done = []
        other = threading.Thread(target=lambda: done.append(served.post(COMPLETIONS, model="b", prompt="x", max_tokens=4)))
        other.start()
        time.sleep(1)
        self.assertEqual((loaded(served), done), (["a"], []))
        reply.read(100)  # it goes on
        connection.close()  # which ends the answer
        other.join()
        self.assertEqual((loaded(served), len(done)), (["b"], 1))
        self.assertEqual(served.stop(), 0)

    def test_a_request_that_waits_has_its_deadline(self):
        served = many(*ONE, long=True)
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps({"model": "a", "prompt": "x", "max_tokens": 49000, "ignore_eos": True,
                                                            "stream": True}))
        connection.getresponse().read(1)
        status, _, answer = served.ask("POST", COMPLETIONS, {"model": "b", "prompt": "x"}, {"X-Request-Timeout": "0.5"})
        self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"))
        connection.close()
        self.assertEqual(served.ask("POST", COMPLETIONS, {"model": "b", "prompt": "x", "max_tokens": 2}, {"X-Request-Timeout": "200"})[0], 200)
        self.assertEqual(served.stop(), 0)

    def test_a_model_that_cannot_be_loaded_is_said_and_others_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder, "broken")
            subprocess.run([INVAR, "make-model", str(broken)], check=True, capture_output=True)
            served = Served(INVAR, command=[INVAR, "serve", f"broken={broken}", f"a={model('a')}", "--host", "127.0.0.1", "--port", "0",
                                            *FAST])
            (broken / "tokenizer.json").write_text("{")
            for _ in range(2):
                status, _, answer = served.ask("POST", COMPLETIONS, {"model": "broken", "prompt": "x"})
                self.assertEqual((status, answer["error"]["message"]),
                                 (503, 'the model "broken" could not be loaded: the server\'s log says why'))
            self.assertIn("[broken] its process has ended: exit status", served.said())
            self.assertRegex(served.said(), r"\[broken\] invar: .*tokenizer\.json")  # the model's own words
            served.post(COMPLETIONS, model="a", prompt="x", max_tokens=4)
            self.assertEqual(served.stop(), 0)


class Ends(unittest.TestCase):
    def process_of(self, served, name):
        """The process that serves a model."""
        for pid in children(served.process.pid):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if model(name).encode() in words:
                return pid
        return None

    def wait_for_an_answer_that_runs(self, served, name):
        for _ in range(1000):
            metrics = served.ask("GET", f"/metrics?model={name}")[2].decode()
            if re.search(r"^vllm:num_requests_running\S* [1-9]", metrics, re.M):
                return
        self.fail("expected an answer that runs, found none")

    def test_an_answer_goes_on_after_kill_9_where_there_is_a_journal(self):
        body = {"model": "a", "prompt": "x", "max_tokens": 1000, "temperature": 1, "seed": 4, "ignore_eos": True}
        single = alone("a", "--max-model-len", "1024")
        expected = single.post(COMPLETIONS, **body)["choices"]
        single.stop()
        with tempfile.TemporaryDirectory() as folder:
            served = many("--journal", folder + "/j", "--max-model-len", "1024")
            for stream in (True, False):
                connection = served.connect()
                served.post(COMPLETIONS, model="a", prompt="y", max_tokens=1)
                killed = self.process_of(served, "a")
                connection.request("POST", COMPLETIONS, json.dumps({**body, "stream": stream}))
                if stream:
                    reply = connection.getresponse()
                    data = reply.read(600)
                    os.kill(killed, signal.SIGKILL)
                    data += reply.read()
                    text = "".join(one["choices"][0]["text"] for one in events(data) if one["choices"])
                else:
                    self.wait_for_an_answer_that_runs(served, "a")
                    os.kill(killed, signal.SIGKILL)
                    text = json.loads(connection.getresponse().read())["choices"][0]["text"]
                self.assertEqual(text, expected[0]["text"])
                self.assertNotIn(self.process_of(served, "a"), (None, killed))
            self.assertEqual(sorted(pathlib.Path(folder).glob("j-a*"))[0].name, "j-a")
            self.assertIn("[a] its process has ended: signal 9", served.said())
            self.assertEqual(served.stop(), 0)

    def test_without_a_journal_kill_9_is_said_in_one_sentence(self):
        served = many(long=True)
        served.post(COMPLETIONS, model="a", prompt="y", max_tokens=1)
        body = {"model": "a", "prompt": "x", "max_tokens": 49000, "ignore_eos": True}
        sentence = 'the process of the model "a" ended while it answered: ask once more'
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps({**body, "stream": True}))
        reply = connection.getresponse()
        data = reply.read(600)
        os.kill(self.process_of(served, "a"), signal.SIGKILL)
        data += reply.read()
        self.assertEqual(events(data)[-1]["error"]["message"], sentence)
        served.post(COMPLETIONS, model="a", prompt="y", max_tokens=1)
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps(body))
        time.sleep(0.3)
        os.kill(self.process_of(served, "a"), signal.SIGKILL)
        reply = connection.getresponse()
        self.assertEqual((reply.status, json.loads(reply.read())["error"]["message"]), (503, sentence))
        served.post(COMPLETIONS, model="a", prompt="y", max_tokens=1)  # it is there again
        self.assertEqual(served.stop(), 0)

    def test_answers_by_id_are_found_in_the_journal_of_their_model(self):
        with tempfile.TemporaryDirectory() as folder:
            served = many("--journal", folder + "/j")
            answers = {name: served.post(COMPLETIONS, model=name, prompt="x", max_tokens=5) for name in "ab"}
            for name, answer in answers.items():
                self.assertEqual(served.ask("GET", f"{COMPLETIONS}/{answer['id']}")[2]["choices"], answer["choices"])
            status, _, answer = served.ask("GET", COMPLETIONS + "/cmpl-none")
            self.assertEqual(status, 404)
            self.assertIn("?model=NAME", answer["error"]["message"])
            self.assertEqual(served.stop(), 0)
            served = many("--journal", folder + "/j")  # where none is loaded
            path = f"{COMPLETIONS}/{answers['b']['id']}"
            self.assertEqual(served.ask("GET", path)[0], 404)
            self.assertEqual(served.ask("GET", path + "?model=b")[2]["choices"], answers["b"]["choices"])
            self.assertEqual(served.stop(), 0)

    def test_sigterm_lets_answers_end_and_leaves_no_process(self):
        served = many()
        for name in "ab":
            served.post(COMPLETIONS, model=name, prompt="x", max_tokens=1)
        processes = children(served.process.pid)
        self.assertEqual(len(processes), 2)
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps({"model": "a", "prompt": "x", "max_tokens": 400, "ignore_eos": True,
                                                            "stream": True}))
        reply = connection.getresponse()
        data = reply.read(100)
        served.process.send_signal(signal.SIGTERM)
        data += reply.read()
        self.assertEqual(events(data)[-1]["choices"][0]["finish_reason"], "length")
        self.assertEqual(served.process.wait(served.patience), 0)
        served.stop()
        for pid in processes:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_kill_9_of_the_server_ends_its_processes(self):
        served = many()
        served.post(COMPLETIONS, model="a", prompt="x", max_tokens=1)
        (pid,) = children(served.process.pid)
        served.stop(signal.SIGKILL)
        served.log = tempfile.TemporaryFile()
        end = time.monotonic() + 10
        while pathlib.Path(f"/proc/{pid}").exists() and "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)


class Keys(unittest.TestCase):
    def test_keys_apply_and_processes_answer_nobody_else(self):
        with tempfile.TemporaryDirectory() as folder:
            served = many("--api-key", "one", "--api-key", "two", "--admin-key", "boss", "--journal", folder + "/j")
            body = {"model": "a", "prompt": "x", "max_tokens": 5}
            self.assertEqual(served.ask("POST", COMPLETIONS, body)[0], 401)
            self.assertEqual(served.ask("GET", "/v1/models")[0], 401)
            self.assertEqual(served.ask("POST", "/sleep?model=a", {}, {"Authorization": "Bearer one"})[0], 401)
            status, _, answer = served.ask("POST", COMPLETIONS, body, {"Authorization": "Bearer one"})
            self.assertEqual(status, 200, answer)
            path = f"{COMPLETIONS}/{answer['id']}"  # an answer belongs to its key
            self.assertEqual(served.ask("GET", path, headers={"Authorization": "Bearer two"})[0], 404)
            self.assertEqual(served.ask("GET", path, headers={"x-api-key": "one"})[0], 200)
            self.assertEqual({one["id"]: one["status"]["value"] for one in
                              served.ask("GET", "/v1/models", headers={"x-api-key": "two"})[2]["data"]}["a"], "loaded")
            (pid,) = children(served.process.pid)
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            for key in ("one", "two", "boss"):
                self.assertNotIn("=" + key, command)
            port = self.port_of(pid)
            inner = Served.__new__(Served)
            inner.port = port
            for path in ("/health", "/v1/models", "/metrics"):
                self.assertEqual(inner.ask("GET", path, headers={"x-api-key": "one"})[0], 403)
            self.assertEqual(served.stop(), 0)

    @staticmethod
    def port_of(pid):
        """The port at which a process listens, on the loopback address alone."""
        inodes = set()
        for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            if match := re.match(r"socket:\[(\d+)\]", os.readlink(file)):
                inodes.add(match[1])
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                assert address == "0100007F", address
                return int(port, 16)
        raise AssertionError("it listens nowhere")


class Flags(unittest.TestCase):
    def refused(self, *words, status=2):
        ran = subprocess.run([INVAR, "serve", *words, "--port", "0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, status, ran.stderr)
        return ran.stderr.splitlines()[-1]

    def test_names_and_patterns(self):
        served = Served(INVAR, command=[INVAR, "serve", f"small,tiny,gpt-*={model('a')}", model("b"), "--host", "127.0.0.1", "--port", "0",
                                        *FAST])
        for name in ("small", "tiny", "gpt-5"):
            self.assertEqual(served.post(COMPLETIONS, model=name, prompt="x", max_tokens=1)["model"], name)
        for name in (model("b"), "b"):
            served.post(COMPLETIONS, model=name, prompt="x", max_tokens=1)
        self.assertEqual(served.ask("GET", "/v1/models/" + model("b").replace("/", "%2F"))[2]["status"]["value"], "loaded")
        self.assertEqual(served.stop(), 0)

    def test_one_model_with_a_name_needs_no_front(self):
        served = Served(INVAR, command=[INVAR, "serve", f"mine={model('a')}", "--host", "127.0.0.1", "--port", "0", *FAST])
        self.assertEqual([one["id"] for one in served.ask("GET", "/v1/models")[2]["data"]], ["mine"])
        self.assertEqual(children(served.process.pid), [])
        self.assertEqual(served.stop(), 0)

    def test_what_is_for_one_model_is_refused(self):
        two = [model("a"), model("b")]
        for flags in (["--lab"], ["--served-model-name", "x", "--"], ["--enable-lora"]):
            self.assertIn("is for one model: leave it out", self.refused(*flags, *two))
        self.assertIn('"x" is the name of two models', self.refused(f"x={two[0]}", f"x={two[1]}"))
        self.assertIn("expected NAME=MODEL", self.refused(f"x*={two[0]}", two[1]))
        self.assertIn("/none", self.refused(two[0], FOLDER + "/none", status=1))

    def test_flags_reach_each_model(self):
        served = many("--no-prompt-logprobs", "--max-logprobs", "3", "--speculative-config",
                      '{"method": "ngram", "prompt_lookup_min": 1, "adaptive": false}')
        status, _, answer = served.ask("POST", COMPLETIONS, {"model": "a", "prompt": "x", "logprobs": 4})
        self.assertEqual(status, 400, answer)
        self.assertEqual(served.ask("GET", "/v1/engine?model=a")[2]["max_logprobs"], 3)
        served.post(COMPLETIONS, model="a", prompt="abababab" * 4, max_tokens=40, temperature=0, ignore_eos=True)
        drafts = re.search(r"^vllm:spec_decode_num_drafts_total{.*} (\d+)", served.ask("GET", "/metrics?model=a")[2].decode(), re.M)
        self.assertGreater(int(drafts[1]), 0)
        self.assertEqual(served.stop(), 0)


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
