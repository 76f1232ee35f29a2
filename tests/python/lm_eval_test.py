"""The real lm-evaluation-harness on the bundled model, with tasks of its own, offline: no batch size changes a result."""
import json
import os
import tempfile
import unittest
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import invar
import invar.lm_eval  # registers the model
import lm_eval
from lm_eval.tasks import TaskManager

TEXTS = ["Once upon a time there was a little girl named Lily.", "Tom had a big red ball.", "The cat sat on the mat and slept.",
         "One day a boy went to the park with his dog.", "She was very happy to see her mom.", "They played all day in the sun."]
TASKS = {
    "endings": """
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{begin}}"
doc_to_choice: choices
doc_to_target: 0
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "stories": """
task: stories
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
""",
    "continued": """
task: continued
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{begin}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["."], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


class HarnessTest(unittest.TestCase):
    def setUp(self):
        self.proofs = []

    def test_results_do_not_depend_on_the_batch(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with open(folder / "data.jsonl", "w") as file:
                for i, text in enumerate(TEXTS):
                    half = len(text) // 2
                    file.write(json.dumps({"begin": text[:half], "text": text,
                                           "choices": [text[half:], " " + TEXTS[i - 1][-9:], " xyz"]}) + "\n")
            for task, text in TASKS.items():
                (folder / f"{task}.yaml").write_text(text.replace("FOLDER", name))
            found = {size: self.results(folder, str(size)) for size in (1, 4, "auto")}
            self.assertEqual(found[1], found[4])
            self.assertEqual(found[1], found["auto"])
            self.assertEqual(len({json.dumps(proof, sort_keys=True) for proof in self.proofs}), 1)
            proof = self.proofs[0]
            self.assertRegex(proof["invar_identity"], "^invar-")
            self.assertEqual([proof["invar_logits_hashes"]["count"], len(proof["invar_weights"])], [len(TEXTS), 64])
            self.assertGreaterEqual(found[1]["endings"]["acc,none"], 0.5)
            self.assertLess(found[1]["stories"]["word_perplexity,none"], 1e6)
            other = self.results(folder, "4", arith="control")
            self.assertNotEqual(other["stories"], found[1]["stories"], "the control: the baseline's arithmetic")
            for name in ("invar_logits_hashes", "invar_score_hashes"):
                self.assertNotEqual(self.proofs[-1][name]["sha256"], proof[name]["sha256"])

    def results(self, folder, batch_size, **more):
        """As the command computes them: by name, with arguments that are texts."""
        args = {"pretrained": invar.bundled_model(), "kv_cache_gib": 0.1, "threads": 1, **more}
        found = lm_eval.simple_evaluate(model="invar", model_args=args, tasks=list(TASKS), batch_size=batch_size,
                                        task_manager=TaskManager(include_path=str(folder)), log_samples=False, bootstrap_iters=0)
        self.proofs.append({name: value for name, value in found["config"].items() if name.startswith("invar_")})
        return found["results"]


if __name__ == "__main__":
    unittest.main()
