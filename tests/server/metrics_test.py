#!/usr/bin/env python3
"""What a running server says of itself: metrics, the dashboard that shows them, the log of requests, the trace of
steps. Usage: metrics_test.py INVAR [unittest arguments]"""
import json
import pathlib
import re
import sys
import tempfile
import unittest

from served import Served, events

INVAR = None  # the program; set by main
DASHBOARD = pathlib.Path(__file__).parents[2] / "tools/grafana/invar.json"
# What vLLM's server has, as far as it says something of one engine without adapters.
VLLM = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prefix_cache_queries_total
    prefix_cache_hits_total prompt_tokens_total generation_tokens_total request_success_total iteration_tokens_total
    time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
    e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_inference_time_seconds request_prompt_tokens request_generation_tokens request_params_max_tokens
    request_max_num_generation_tokens time_per_output_token_seconds request_params_n cache_config_info spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total""".split()


def parse(text):
    """{metric's name: {line's labels: value}}; each line must be well formed and of a type that was said."""
    types, lines = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, f"{name} twice"
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line)
            assert match, line
            base = re.sub("_(bucket|sum|count)$", "", match[1]) if match[1] not in types else match[1]
            assert base in types, line
            lines.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return types, lines


class MetricsTest(unittest.TestCase):
    def metrics(self, server):
        return parse(server.ask("GET", "/metrics")[2].decode())

    def check_one_server(self, *flags):
        server = Served(INVAR, *flags)
        for n in (1, 2):
            server.post("/v1/completions", prompt=list(range(40)), max_tokens=6, n=n, seed=1, ignore_eos=True)
        self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": 1})[0], 400)
        types, lines = self.metrics(server)
        names = {f"vllm:{name}" for name in VLLM}
        self.assertEqual(names - set(types), set())
        for name in names:
            for labels in lines.get(name, {}):
                self.assertTrue(labels.startswith('engine="0",model_name="m"'), (name, labels))
        one = lambda name: next(iter(lines[name].values()))
        self.assertEqual(one("vllm:request_max_num_generation_tokens_sum"), 12)  # n counts once
        self.assertEqual(one("vllm:request_generation_tokens_sum"), 18)
        for name in ["queue", "prefill", "decode", "inference"]:
            self.assertEqual(one(f"vllm:request_{name}_time_seconds_count"), 2, name)
        times = {name: one(f"vllm:request_{name}_time_seconds_sum") for name in ["queue", "prefill", "decode", "inference"]}
        self.assertTrue(all(value >= 0 for value in times.values()), times)
        self.assertGreater(times["prefill"], 0)
        self.assertAlmostEqual(times["prefill"] + times["decode"], times["inference"], delta=1e-4)
        whole = one("vllm:e2e_request_latency_seconds_sum")
        self.assertLessEqual(times["queue"] + times["inference"], whole + 1e-4)
        kinds = {re.search('kind="(.*)"', labels)[1]: value for labels, value in lines["invar:step_rows_total"].items()}
        # The second prompt is taken from the cache but for its last block; each later answer token is a decode row.
        self.assertEqual(kinds["decode"], 5 + 2 * 5)
        self.assertGreaterEqual(kinds["prompt"], 40)
        self.assertEqual(sum(kinds.values()), one("invar:engine_rows_total"))
        self.assertEqual(one("vllm:iteration_tokens_total_sum"), one("invar:engine_rows_total"))
        self.assertEqual(one("vllm:iteration_tokens_total_count"), one("invar:engine_steps_total"))
        self.assertEqual(one("invar:stalled_rows_total"), 0)
        self.assertIn('block_size="64"', next(iter(lines["vllm:cache_config_info"])))
        self.assertGreater(lines["process_resident_memory_bytes"][""], 1e6)
        self.assertGreater(lines["process_start_time_seconds"][""], 1.6e9)
        self.assertEqual(one("invar:requests_refused_total"), 1)
        server.stop()

    def test_metrics_add_up(self):
        self.check_one_server()

    def test_they_do_with_an_engine_in_another_process(self):
        self.check_one_server("--engine-process")

    def test_the_dashboard_shows_what_there_is(self):
        server = Served(INVAR)
        server.ask("POST", "/v1/completions", {"prompt": 1})
        server.post("/v1/completions", prompt=[1], max_tokens=1)
        _, lines = self.metrics(server)
        labels = {name: set(re.findall('([a-z_]+)="', "".join(found))) for name, found in lines.items()}
        shown = 0
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel["targets"]:
                for name, selected in re.findall(r"((?:vllm:|invar:|process_)[a-z0-9_]+)(?:\{([^}]*)\})?", target["expr"]):
                    self.assertIn(name, lines, panel["title"])
                    for label in re.findall(r"([a-z_]+)=~?", selected):
                        self.assertIn(label, labels[name], name)
                    by = re.search(r"by \(([a-z]+)\)", target["expr"])
                    if by:
                        self.assertIn(by[1], labels[name], name)
                    shown += 1
        self.assertGreater(shown, 25)
        server.stop()

    def test_stalls_are_counted_where_prompts_come_first(self):
        """Of prompts that come together and need several steps, the first's answer waits for the others or does not."""
        for policy, stalls in [("sarathi", False), ("vllm", True)]:
            server = Served(INVAR, "--scheduling-policy", policy, "--max-num-batched-tokens", "512")
            server.post("/v1/completions", prompt=[[n] * 400 for n in range(6)], max_tokens=20, ignore_eos=True)
            self.assertEqual(server.metric("invar:stalled_rows_total") > 0, stalls, policy)
            server.stop()

    def test_each_request_is_a_line_of_the_log(self):
        with tempfile.TemporaryDirectory() as folder:
            log, trace = pathlib.Path(folder) / "log", pathlib.Path(folder) / "trace"
            server = Served(INVAR, "--log-requests", str(log), "--trace-steps", str(trace))
            whole = server.post("/v1/completions", prompt="a", max_tokens=3, seed=4, ignore_eos=True)
            events(server.stream("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=2, ignore_eos=True))
            server.wait_until(lambda: log.read_text().count("\n") == 2)
            one, two = map(json.loads, log.read_text().splitlines())
            self.assertEqual((one["id"], one["tokens"], one["seed"], one["finish"], one["stream"]), (whole["id"], 3, 4, "length", False))
            self.assertEqual((two["endpoint"], two["tokens"], two["stream"]), ("/v1/chat/completions", 2, True))
            for line in (one, two):
                self.assertTrue(0 <= line["queue_ms"] <= line["first_token_ms"] <= line["total_ms"], line)
            server.stop()
            steps = json.loads(trace.read_text())
            slices = [event for event in steps if event["ph"] == "X"]
            self.assertEqual(sum(event["args"]["tokens"] for event in slices), 5)
            self.assertTrue(all(event["dur"] > 0 for event in slices))

    def test_files_that_cannot_be_written_are_named(self):
        for flag in ["--log-requests", "--trace-steps"]:
            with self.assertRaises(AssertionError) as caught:
                Served(INVAR, flag, "/nonexistent/file")
            self.assertIn("/nonexistent/file: cannot be written", str(caught.exception))


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
