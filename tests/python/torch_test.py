"""invar.torch, batch_invariant_ops and CausalLM beside the engine and the trainer: the same bits."""
import base64
import json
import os
import pickle
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

import batch_invariant_ops as published
import invar
from invar import torch as ops
from invar.models import CausalLM
from support import tiny

torch.manual_seed(1)
TEXTS = [list(range(3, 90)), list(range(200, 233)), [5, 7, 9]]


def same(a, b):
    return a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


def padded(texts, left=False):
    longest = max(map(len, texts))
    rows = [([0] * (longest - len(t)) + t) if left else (t + [0] * (longest - len(t))) for t in texts]
    masks = [([0] * (longest - len(t)) + [1] * len(t)) if left else ([1] * len(t) + [0] * (longest - len(t))) for t in texts]
    return torch.tensor(rows), torch.tensor(masks)


class OperatorsTest(unittest.TestCase):
    def test_rows_do_not_depend_on_their_batch(self):
        w, x = torch.randn(70, 128), torch.randn(65, 128)
        for runs in (1, 2):
            whole = ops.linear(x, w, runs=runs)
            for rows in (1, 7, 64):
                self.assertTrue(same(ops.linear(x[:rows], w, runs=runs), whole[:rows]))
        self.assertFalse(same(ops.linear(x, w, runs=1), ops.linear(x, w, runs=4)), "the control: another order")
        np.testing.assert_allclose(ops.linear(x, w), x.bfloat16().float() @ w.bfloat16().float().T, atol=1e-4)

    def test_packed_weights_are_kept_and_changes_noticed(self):
        """Whoever writes them: torch in place, .data past torch's counter of versions, numpy by the same memory."""
        made = ops.packings
        x, w, v = torch.randn(9, 64), torch.randn(48, 64), torch.randn(48, 64)
        ops.linear(x, w), ops.gated_linear(x, w, v)
        before = made()
        first, pair = ops.linear(x, w), ops.gated_linear(x, w, v)
        self.assertTrue(same(ops.linear(x[:3], w), first[:3]))
        self.assertEqual(made(), before, "packed again")
        for change in (lambda: w.mul_(2), lambda: w.data.copy_(v), lambda: w.numpy().fill(0.5), lambda: w.view(-1)[17:18].add_(1)):
            change()
            found = ops.linear(x, w)
            self.assertTrue(same(found, ops.linear(x, w.clone())))
            self.assertFalse(same(found, first), "the control: other weights, other products")
            first = found
            self.assertFalse(same(ops.gated_linear(x, w, v), pair))
            pair = ops.gated_linear(x, w, v)
            self.assertTrue(same(pair, ops.gated_linear(x, w.clone(), v.clone())))
        for _ in range(50):  # memory that others had before
            one = torch.randn(48, 64)
            np.testing.assert_allclose(ops.linear(x, one), x.bfloat16().float() @ one.bfloat16().float().T, atol=1e-4)
            del one

    def test_backward_is_close_to_autograds(self):
        x, w, norm = torch.randn(40, 64), torch.randn(48, 64) / 8, torch.rand(64) + 0.5
        gate, up = torch.randn(48, 64) / 8, torch.randn(48, 64) / 8
        ours = [t.clone().requires_grad_() for t in (x, w, norm, gate, up)]
        theirs = [t.clone().requires_grad_() for t in (x, w, norm, gate, up)]

        def by_ops(x, w, norm, gate, up):
            n = ops.rms_norm(x, norm, 1e-6)
            return ops.log_softmax_gather(ops.linear(n, w) + ops.gated_linear(n, gate, up), torch.arange(40)).sum()

        def by_torch(x, w, norm, gate, up):
            n = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * norm
            y = n @ w.T + torch.nn.functional.silu(n @ gate.T) * (n @ up.T)
            return torch.log_softmax(y, -1).gather(1, torch.arange(40)[:, None]).sum()

        by_ops(*ours).backward()
        by_torch(*theirs).backward()
        for a, b in zip(ours, theirs):
            self.assertLess((a.grad - b.grad).norm() / b.grad.norm(), 0.03)

    def test_dx_does_not_depend_on_the_batch(self):
        x, w = torch.randn(64, 96), torch.randn(80, 96)
        d = torch.randn(64, 80)

        def dx(rows):
            part = x[:rows].clone().requires_grad_()
            ops.linear(part, w).backward(d[:rows])
            return part.grad

        self.assertTrue(same(dx(64)[:9], dx(9)))

    def test_chains_go_on_from_batch_to_batch(self):
        x, d, w = torch.randn(192, 64), torch.randn(192, 32), torch.randn(32, 64).requires_grad_()
        ops.linear(x, w).backward(d)
        chain = torch.zeros(32, 64)
        for begin in (0, 64, 128):
            ops.linear(x[begin:begin + 64], w, accumulate_into=chain).backward(d[begin:begin + 64])
        self.assertTrue(same(chain, w.grad))
        added = torch.zeros(32, 64)
        for begin in (0, 64, 128):
            part = w.detach().clone().requires_grad_()
            ops.linear(x[begin:begin + 64], part).backward(d[begin:begin + 64])
            added += part.grad
        self.assertFalse(same(added, w.grad), "the control: sums that are added")

    def test_attention_and_rope(self):
        q, k, v = torch.randn(50, 4, 32), torch.randn(50, 2, 32), torch.randn(50, 2, 32)
        found = ops.attention(q, k, v, [30, 20])
        alone = ops.attention(q[30:], k[30:], v[30:])
        self.assertTrue(same(found[30:], alone))
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(t[30:].bfloat16().float().repeat_interleave(4 // t.shape[1], 1).transpose(0, 1) for t in (q, k, v)),
            is_causal=True).transpose(0, 1)
        np.testing.assert_allclose(alone, expected, atol=2e-2)
        angles = torch.outer(torch.arange(64).float(), 10000 ** (-torch.arange(16) / 16.0))
        turned = ops.rope(q, torch.arange(50), angles.cos(), angles.sin())
        back = ops.rope(turned, torch.arange(50), angles.cos(), -angles.sin())
        np.testing.assert_allclose(back, q, atol=1e-5)

    def test_paged_attention_is_attention(self):
        """Whatever the blocks and however many rows come at a time; and who reads another's blocks is somebody else."""
        heads, kv_heads, size, lengths = 4, 2, 32, [60, 60]
        qkv, angles = torch.randn(120, 8 * size), torch.outer(torch.arange(128).float(), 10000 ** (-torch.arange(16) / 16.0))
        cos, sin = angles.cos(), angles.sin()
        dense = ops.packed_attention(qkv, cos, sin, lengths, heads, kv_heads)

        def paged(steps, tables):
            cache, found = ops.paged_cache(10, kv_heads, size, 32), [[], []]
            for first in range(0, 60, steps):
                rows = torch.cat([qkv[begin + first:begin + first + steps] for begin in (0, 60)])
                out = ops.paged_attention(rows, cache, tables, torch.full((2,), first, dtype=torch.int32), cos, sin, [steps] * 2,
                                          heads, kv_heads, block_size=32)
                for part, of in zip(out.split(steps), found):
                    of.append(part)
            return torch.cat([torch.cat(of) for of in found])

        tables = torch.tensor([[7, 2], [0, 9]], dtype=torch.int32)
        for steps in (1, 20, 60):
            self.assertTrue(same(paged(steps, tables), dense))
        self.assertFalse(same(paged(20, torch.tensor([[7, 2], [7, 2]], dtype=torch.int32)), dense), "the control: another's blocks")
        for wrong in (torch.tensor([[7, 2], [0, 10]], dtype=torch.int32), tables[:1], tables.float()):
            with self.assertRaises((ValueError, TypeError, IndexError, RuntimeError)):
                paged(20, wrong)

    def test_operators_have_fake_tensors_and_schemas(self):
        x, w = torch.randn(8, 64, requires_grad=True), torch.randn(16, 64, requires_grad=True)
        torch.library.opcheck(torch.ops.invar.linear.default, (x, [w], [], [], 1, None, "portable"),
                              test_utils=("test_schema", "test_faketensor"))
        torch.library.opcheck(torch.ops.invar.rms_norm.default, (x, torch.ones(64), 1e-6, True, "portable", torch.float32),
                              test_utils=("test_schema", "test_faketensor"))

    def test_what_makes_no_sense_is_an_exception(self):
        x, w = torch.randn(4, 64), torch.randn(8, 64)
        for call in (lambda: ops.linear(x, w[:, :32]), lambda: ops.linear(x, w, torch.zeros(3)), lambda: ops.linear(x, w, runs=5),
                     lambda: ops.linear(x, w, order="x"), lambda: ops.rms_norm(x, torch.ones(3)), lambda: ops.linear(x[:0], w),
                     lambda: ops.embedding(torch.tensor([99]), w), lambda: ops.log_softmax_gather(x, torch.full((4,), 64)),
                     lambda: ops.gated_linear(x, w, w[:4]), lambda: ops.attention(x.view(4, 2, 32), x.view(4, 2, 32), x.view(4, 2, 32), [3]),
                     lambda: ops.rope(x.view(4, 2, 32), torch.tensor([0, 1, 2, 99]), torch.ones(4, 16), torch.ones(4, 16))):
            with self.assertRaises((ValueError, TypeError, RuntimeError)):
                call()


class TransferTest(unittest.TestCase):
    """What can be said of vLLM's weight transfer without a GPU: torch_cuda_test.py has the rest."""

    def info(self, pickled, **changes):
        return {"update_info": {"names": ["model.norm.weight"], "dtype_names": ["bfloat16"], "shapes": [[128]],
                                "ipc_handles_pickled": base64.b64encode(pickled).decode(), **changes}}

    def test_a_pickle_calls_nothing(self):
        handle = (rebuild_cuda_tensor, (torch.Tensor, torch.Size([128]), (1,), 0, torch.UntypedStorage, torch.bfloat16, 0, b"x" * 66))
        good = pickle.dumps([{"GPU-x": handle}])
        with tiny() as llm:
            digest = llm.weights_digest()
            llm.init_weight_transfer_engine({"init_info": {}})
            llm.start_weight_update()
            for request, said in ((self.info(pickle.dumps([os.getcwd])), "getcwd"), (self.info(pickle.dumps([torch.load])), "load"),
                                  (self.info(pickle.dumps([{"GPU-x": handle}] * 2)), "for each of the names"),
                                  (self.info(good[:20]), "handles"), (self.info(good, names="x"), "names"),
                                  (self.info(good), "expected a handle of the GPU"), ({"update_info": 5}, "update_info")):
                with self.assertRaisesRegex(ValueError, said):
                    llm.update_weights(request)
            with self.assertRaisesRegex(ValueError, "back end ipc"):
                llm.init_weight_transfer_engine({"init_info": {"master_address": "localhost"}})
            with self.assertRaisesRegex(ValueError, "is_checkpoint_format"):
                llm.start_weight_update(is_checkpoint_format=False)
            self.assertEqual(llm.weights_digest(), digest)
            llm.finish_weight_update("7")
            self.assertEqual(llm.weight_version, "7")


class CausalLMTest(unittest.TestCase):
    def test_log_probabilities_are_the_engines(self):
        model = CausalLM("tiny", load_format="dummy:7")
        with tiny() as llm:
            expected = llm.score(TEXTS)
        for left in (False, True):
            ids, mask = padded(TEXTS, left)
            with torch.no_grad():
                found = model.log_probs(ids, mask)
            for row, m, scores in zip(found, mask, expected):
                both = (m[1:] * m[:-1]).bool()
                self.assertEqual(row[both].tolist(), scores)
        with tiny(seed=8) as other:
            self.assertNotEqual(other.score(TEXTS), expected, "the control: another model")

    def test_gradients_are_the_trainers(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([os.environ["INVAR_WRITE_GRADIENTS"], folder], check=True)
            cases = sorted(Path(folder).iterdir())
            dense = [case for case in cases if "experts" not in case.name]  # CausalLM has no experts
            self.assertEqual([case.name for case in dense], ["llama", "mistral", "qwen2", "qwen3"])
            for case in dense:
                with self.subTest(case.name):
                    self.compare_gradients(case)

    def compare_gradients(self, case):
        model = CausalLM(str(case))
        batches = json.loads((case / "batches.json").read_text())
        self.backward(model, batches[0])
        for name, parameter in model.named_parameters():
            self.assertEqual(parameter.grad.numpy().tobytes(), (case / f"{name}.1").read_bytes(), name)
        # Matrices of layers again over both batches, whose chains go on.
        model.zero_grad()
        names = [n for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
        model.chains = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
        for batch in batches:
            self.backward(model, batch)
        for name, chain in model.chains.items():
            self.assertEqual(chain.numpy().tobytes(), (case / f"{name}.2").read_bytes(), name)
            self.assertIsNone(model.get_parameter(name).grad)

    def backward(self, model, batch):
        tokens, targets = (torch.tensor([t for one in batch for t in one[what]]) for what in ("tokens", "targets"))
        weights = torch.tensor([w for one in batch for w in one["weights"]], dtype=torch.float32)
        logits = model.logits_of(tokens, [len(one["tokens"]) for one in batch])
        (-(ops.log_softmax_gather(logits, targets) * weights)).sum().backward()

    def test_it_trains_and_the_engine_takes_its_weights(self):
        model = CausalLM("tiny", load_format="dummy:7")
        ids = torch.tensor([TEXTS[0]])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] - 0.05)
        with tiny() as llm, torch.no_grad():
            before = llm.score([TEXTS[0]])[0]
            llm.update_weights((n, p.to(torch.bfloat16)) for n, p in model.named_parameters())
            found = llm.score([TEXTS[0]])[0]
            self.assertEqual(model.log_probs(ids)[0].tolist(), found)
            self.assertNotEqual(found, before)


class WeightsTest(unittest.TestCase):
    def test_weights_come_and_go_as_torch_tensors(self):
        """By this environment's numpy, which is another one than the module was built beside."""
        with tiny() as llm, tiny(seed=8) as other:
            named = [(n, torch.from_numpy(a.view("int16")).view(torch.bfloat16)) for n, a in other.named_weights()]
            self.assertEqual([list(t.shape) for _, t in named], [shape for _, _, shape in other.tensors()])
            llm.update_weights(named)
            self.assertEqual(llm.weights_digest(), other.weights_digest())
            self.assertEqual(llm.score([TEXTS[0]]), other.score([TEXTS[0]]))


class PublishedNamesTest(unittest.TestCase):
    def test_the_mode_overrides_and_gives_back(self):
        a, b = torch.randn(33, 200).bfloat16(), torch.randn(200, 40).bfloat16()
        self.assertFalse(published.is_batch_invariant_mode_enabled())
        plain = torch.mm(a, b)
        with published.set_batch_invariant_mode(True):
            self.assertTrue(published.is_batch_invariant_mode_enabled())
            ours = torch.mm(a, b)
            self.assertTrue(same(ours.float(), published.matmul_persistent(a, b).float()))
            for rows in (1, 5):
                self.assertTrue(same(torch.mm(a[:rows], b).float(), ours[:rows].float()))
                self.assertTrue(same(torch.addmm(torch.ones(40).bfloat16(), a[:rows], b).float(),
                                     torch.addmm(torch.ones(40).bfloat16(), a, b)[:rows].float()))
            x = torch.randn(6, 1000)
            self.assertTrue(same(torch.log_softmax(x, -1)[2:3], torch.log_softmax(x[2:3], -1)))
            self.assertTrue(same(x.mean(dim=-1)[2:3], x[2:3].mean(dim=-1)))
            self.assertTrue(same(x.mean(dim=0), published.mean_dim(x, 0)))
            three = torch.randn(3, 5, 64), torch.randn(3, 64, 7)
            self.assertTrue(same(torch.bmm(*three)[1], torch.mm(three[0][1], three[1][1])))
            np.testing.assert_allclose(torch.bmm(*three), three[0] @ three[1], atol=1e-4)
            np.testing.assert_allclose(torch.log_softmax(x, 0).exp().sum(0), torch.ones(1000), atol=1e-5)
            layer = torch.nn.Linear(64, 8)
            layer(torch.randn(3, 64)).sum().backward()
        self.assertFalse(published.is_batch_invariant_mode_enabled())
        self.assertTrue(same(torch.mm(a, b).float(), plain.float()))
        np.testing.assert_allclose(ours.float(), plain.float(), rtol=2e-2, atol=1e-1)
        self.assertEqual(published.get_batch_invariant_attention_block_size(), (16, 16))


if __name__ == "__main__":
    unittest.main()
