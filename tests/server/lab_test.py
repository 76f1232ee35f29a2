#!/usr/bin/env python3
"""The endpoints by which a page changes the engine of a server with --lab. Usage: lab_test.py INVAR [unittest arguments]"""
import sys
import time
import unittest

from served import Served

INVAR = None  # the program; set by main


class LabTest(unittest.TestCase):
    """What they refuse, and what they change."""

    def test_without_a_lab_nothing_is_changed(self):
        server = Served(INVAR)
        self.assertIsNone(server.ask("GET", "/v1/engine")[2]["lab"])
        status, _, body = server.ask("POST", "/v1/engine", {"policy": "vllm"})
        self.assertEqual((status, body["error"]["code"]), (403, "no_lab"))
        self.assertEqual(server.ask("GET", "/v1/engine/steps?after=x")[0], 400)
        server.stop()

    def test_a_lab_refuses_what_it_does_not_know_and_goes_on(self):
        server = Served(INVAR, "--lab")
        answer = lambda: server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=5, seed=1, logits_hash=True)["logits_hash"]
        before = answer()
        for body in [{"policy": "none"}, {"arithmetic": "none"}, {"step_rows": -1}, {"step_rows": "x"}, {"more": 1}, [], {"policy": 1}, {"drafter": "none of them"}, {"drafter": 1}, {"ranks": 3}, {"ranks": 0}]:
            self.assertEqual(server.ask("POST", "/v1/engine", body)[0], 400, body)
        for policy in server.ask("GET", "/v1/engine")[2]["lab"]["policies"]:
            self.assertEqual(server.ask("POST", "/v1/engine", {"policy": policy})[2]["lab"]["policy"], policy)
            self.assertEqual(answer(), before, policy)
        for policy in ["simple-chunking", "sarathi"]:
            server.post("/v1/engine", step_rows=48, policy=policy)
            self.assertEqual(answer(), before)
            last = server.ask("GET", "/v1/engine/steps")[2]["last"]
            server.post("/v1/completions", prompt=[*range(1, 201)], max_tokens=1)
            steps = server.ask("GET", f"/v1/engine/steps?after={last}")[2]
            rows = [dict(zip(steps["columns"], step))["prompt_rows"] for step in steps["steps"]]
            self.assertEqual(rows, [48] * 4 + [8], policy)
        lab = server.ask("GET", "/v1/engine")[2]["lab"]
        self.assertEqual((lab["drafters"], lab["rank_counts"]), (["none", "ngram", "suffix", "lookahead", "early_exit"], [1, 2, 4]))
        for settings in [{"drafter": drafter} for drafter in lab["drafters"]] + [{"ranks": ranks} for ranks in lab["rank_counts"]]:
            self.assertLessEqual(settings.items(), server.post("/v1/engine", **settings)["lab"].items())
            self.assertEqual(answer(), before, settings)
        # It does change how they are computed: what promises nothing shows it.
        long = lambda: server.post("/v1/completions", prompt=[37 * i % 250 for i in range(200)], max_tokens=8, seed=1, logits_hash=True)["logits_hash"]
        server.post("/v1/engine", arithmetic="control", drafter="none", ranks=1, step_rows=0)
        alone = long()
        server.post("/v1/engine", ranks=4)
        self.assertNotEqual(long(), alone)
        server.post("/v1/engine", arithmetic="portable", ranks=1)
        steps = server.ask("GET", "/v1/engine/steps?after=0")[2]
        row = dict(zip(steps["columns"], steps["steps"][-1]))
        self.assertEqual((row["number"], row["decode_rows"], row["tokens"]), (steps["last"], 1, 1))
        self.assertEqual(server.ask("GET", f"/v1/engine/steps?after={steps['last']}")[2]["steps"], [])
        server.stop()

    def test_what_a_page_changed_goes_back_when_it_has_gone(self):
        server = Served(INVAR, "--lab")
        policy = lambda: server.ask("GET", "/v1/engine")[2]["lab"]["policy"]
        own = policy()
        server.post("/v1/engine", policy="vllm", for_seconds=2)
        for _ in range(3):  # a page that is open asks for it again
            time.sleep(1)
            server.post("/v1/engine", for_seconds=2)
            self.assertEqual(policy(), "vllm")
        server.wait_until(lambda: policy() == own)
        lend = {"policy": "vllm", "for_seconds": 1}
        server.wait_until(lambda: server.ask("POST", "/v1/engine", lend)[0] == 200)  # while it goes back it is busy
        server.post("/v1/engine", policy="orca")  # to stay
        time.sleep(1.5)
        self.assertEqual(policy(), "orca")
        server.post("/v1/engine", for_seconds=600)
        self.assertEqual(server.stop(), 0)  # does not wait for it


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
