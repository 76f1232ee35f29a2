// Whether sampler and trainer are one policy is a question about every token of the vocabulary at
// every position, not about the tokens that were drawn: an estimate of 0 from samples may hide
// more. So the engine answers as a sampler does, in one batch, and says the hash of the logits that
// it drew from; a trainer's logits of the same texts are hashed the same way. Where the hashes
// differ, the KL says how far.
#include "audit_trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/line_process.h"
#include "invar/invar.h"
#include "model/families/family_source.h"
#include "model/parameters.h"
#include "numerics/logits_hash.h"
#include "train/row_packer.h"
#include "train/trainer.h"
#include "weights/hf_directory.h"

namespace invar::cli {

namespace {

namespace fs = std::filesystem;

// A prompt with its answer: the logits at [first, first + answer) drew the answer's tokens.
struct Text {
  std::vector<int32_t> tokens;
  size_t first = 0, answer = 0;
  std::string hash;           // that the sampler said
  std::vector<float> logits;  // [answer][vocabulary], the sampler's
};

// A trainer's logits of a text: [answer][vocabulary].
using LogitsOf = std::function<std::vector<float>(size_t text)>;

std::string hash_of(std::span<const float> logits, size_t vocab) {
  PositionHasher hasher;
  LogitsHash hash;
  for (size_t at = 0; at < logits.size(); at += vocab) hash.add(hasher(logits.subspan(at, vocab)));
  return to_hex(hash.value());
}

std::vector<Text> sampled_texts(const ModelOptions& model, const TrainerAuditFlags& flags,
                                std::string& identity, size_t& vocab) {
  Session session({.model = model.model,
                   .load_format = model.load_format,
                   .arithmetic = model.arithmetic,
                   .weights = model.weights,
                   .device = model.device,
                   .instruction_set = model.instruction_set,
                   .threads = model.threads,
                   .max_model_len = flags.tokens + 64,
                   .kv_cache_gib = 0.25});
  identity = session.identity();
  vocab = static_cast<size_t>(session.vocabulary_size());
  std::vector<Query> queries;
  for (int i = 0; i < flags.texts; ++i) {
    Query query;
    for (int t = 0; t < 1 + i * 7 % 40; ++t)
      query.prompt.push_back(static_cast<int32_t>((11 + 131 * t + 17 * i) % vocab));
    query.options.max_tokens = flags.tokens;
    query.options.ignore_eos = true;
    query.options.seed = static_cast<uint64_t>(i);
    queries.push_back(std::move(query));
  }
  std::vector<Text> texts;
  const std::vector<Generation> answers = session.generate(std::span<const Query>(queries));
  for (size_t i = 0; i < queries.size(); ++i) {
    Text text{.tokens = queries[i].prompt,
              .first = queries[i].prompt.size() - 1,
              .answer = answers[i].tokens.size(),
              .hash = answers[i].logits_hash};
    text.tokens.insert(text.tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    std::vector<int32_t> positions;
    for (size_t t = 0; t < text.answer; ++t)
      positions.push_back(static_cast<int32_t>(text.first + t));
    text.logits = session.inspect(text.tokens, positions).logits;
    if (hash_of(text.logits, vocab) != text.hash)
      fail("text {}: expected the logits of the answer's hash {}, found others", i, text.hash);
    texts.push_back(std::move(text));
  }
  return texts;
}

// Invar's own trainer, its packed rows and its forward.
LogitsOf own_trainer(const ModelOptions& model, const std::vector<Text>& texts, size_t vocab) {
  TrainerOptions options;
  const HfDirectory directory = open_hf_directory(model.model);
  options.model = parse_model_config(directory.config, directory.generation_config, model.model);
  options.model.spec.mtp_layers = 0;
  options.order = model.arithmetic == "hopper" ? Order::hopper : Order::portable;
  size_t longest = 0;
  for (const Text& text : texts) longest = std::max(longest, text.tokens.size());
  options.context = static_cast<int>((longest + 31) / 32 * 32);
  options.groups = 1;
  options.rows = options.batch_rows = static_cast<int>(std::min<size_t>(texts.size(), 4));
  options.threads = model.threads;
  options.device = model.device;
  options.instruction_set = model.instruction_set;
  const auto source = open_checkpoint(model.model);
  Trainer trainer(options, starting_state(options.model.spec, *source));
  std::vector<PackedRow> rows;
  for (const Text& text : texts) {
    append_sequence(rows.emplace_back(),
                    {text.tokens, std::vector<uint8_t>(text.tokens.size(), 1)});
    fill_row(rows.back(), options.context, 0);
  }
  const auto all = std::make_shared<std::vector<std::vector<float>>>(texts.size());
  trainer.logits(rows, [&](size_t row, size_t position, std::span<const float> logits) {
    const Text& text = texts[row];
    if (position < text.first || position >= text.first + text.answer) return;
    (*all)[row].insert((*all)[row].end(), logits.begin(),
                       logits.begin() + static_cast<int64_t>(vocab));
  });
  return [all](size_t i) { return (*all)[i]; };
}

// The rows that drew the answer, of rows for all tokens of a text or for the answer's alone.
std::vector<float> rows_of_answer(std::vector<float> found, const Text& text, size_t vocab,
                                  const std::string& where) {
  const size_t rows = found.size() / vocab;
  if (found.size() % vocab != 0 || (rows != text.answer && rows != text.tokens.size()))
    fail(
        "{}: expected {} rows of {} logits (of all tokens), or {} (of the answer\'s), found {} "
        "numbers",
        where, text.tokens.size(), vocab, text.answer, found.size());
  if (rows == text.answer) return found;
  const auto begin = found.begin() + static_cast<int64_t>(text.first * vocab);
  return {begin, begin + static_cast<int64_t>(text.answer * vocab)};
}

std::vector<float> floats_in(std::string_view bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), numbers.size() * sizeof(float),
              reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

// The numbers of an .npy file of little-endian f32, whose shape is told by their count.
std::vector<float> read_npy(const std::string& path) {
  const std::string bytes = read_whole_file(path, int64_t{64} << 30);
  constexpr size_t kMagic = 10;
  const bool is_npy = bytes.size() > kMagic && bytes.starts_with("\x93NUMPY\x01");
  const size_t head =
      is_npy ? static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9])
             : 0;
  if (!is_npy || bytes.size() < kMagic + head ||
      bytes.substr(kMagic, head).find("'<f4'") == std::string::npos ||
      bytes.substr(kMagic, head).find("'fortran_order': False") == std::string::npos)
    fail("{}: expected an array of numpy (format 1) of float32 in C order", path);
  return floats_in(std::string_view(bytes).substr(kMagic + head));
}

// texts.jsonl says of which tokens the directory is to have the logits, 0.npy, 1.npy, ...
LogitsOf directory_of_logits(const std::string& directory, const std::vector<Text>& texts,
                             size_t vocab) {
  const fs::path list = fs::path(directory) / "texts.jsonl";
  std::string lines;
  for (const Text& text : texts) {
    json::Array ids;
    for (const int32_t id : text.tokens) ids.emplace_back(int64_t{id});
    lines += json::dump(json::Object{{"tokens", std::move(ids)},
                                     {"prompt", static_cast<int64_t>(text.first + 1)}}) +
             '\n';
  }
  if (!fs::exists(list)) {
    make_directories(directory);
    write_file_atomically(list.string(), lines);
    fail(
        "{} is written: expected the logits of line i, float32 [tokens][{}], as {}/i.npy beside "
        "it; "
        "then ask again",
        list.string(), vocab, directory);
  }
  if (read_whole_file(list.string()) != lines)
    fail("{}: expected the texts of this audit, found others: remove it", list.string());
  return [=, &texts](size_t i) {
    const std::string file = (fs::path(directory) / fmt::format("{}.npy", i)).string();
    return rows_of_answer(read_npy(file), texts[i], vocab, file);
  };
}

// Reads {"tokens", "file"}, writes logits as raw float32 to the file and says {"done": true}.
constexpr const char* kCaller = R"(
import importlib.util, json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
what, model = sys.argv[1], sys.argv[2]
if what.startswith("transformers"):
    import torch, transformers
    dtype = what.partition(":")[2] or "auto"
    decoder = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    def logits(tokens):
        with torch.no_grad():
            return decoder(torch.tensor([tokens])).logits[0].float()
else:
    path, _, name = what.rpartition(":")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("trainer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits = getattr(module, name)
import array
for line in sys.stdin:
    asked = json.loads(line)
    found = logits(asked["tokens"])
    if hasattr(found, "detach"):
        found = found.detach().cpu().float().numpy()
    if hasattr(found, "astype"):
        found.astype("<f4", order="C").tofile(asked["file"])
    else:
        with open(asked["file"], "wb") as file:
            array.array("f", [x for row in found for x in row]).tofile(file)
    print(json.dumps({"done": True}), file=out, flush=True)
)";

LogitsOf python_trainer(const std::string& what, const std::string& model,
                        const std::vector<Text>& texts, size_t vocab) {
  constexpr int kSeconds = 600;
  const char* python = std::getenv("INVAR_PYTHON");
  const auto process = std::make_shared<LineProcess>(
      std::vector<std::string>{python ? python : "python3", "-c", kCaller, what,
                               fs::absolute(model).string()},
      "the trainer " + what, kSeconds);
  return [=, &texts](size_t i) {
    const std::string file =
        (fs::temp_directory_path() / fmt::format("invar-logits-{}.f32", ::getpid())).string();
    json::Array ids;
    for (const int32_t id : texts[i].tokens) ids.emplace_back(int64_t{id});
    process->ask(json::Object{{"tokens", std::move(ids)}, {"file", file}});
    std::vector<float> found = floats_in(read_whole_file(file, int64_t{64} << 30));
    fs::remove(file);
    return rows_of_answer(std::move(found), texts[i], vocab, process->name());
  };
}

LogitsOf other_trainer(const std::string& what, const std::string& model,
                       const std::vector<Text>& texts, size_t vocab) {
  const size_t colon = what.rfind(':');
  const bool is_function = colon != std::string::npos && what.substr(0, colon).ends_with(".py");
  if (is_function || what == "transformers" || what.starts_with("transformers:"))
    return python_trainer(what, model, texts, vocab);
  return directory_of_logits(what, texts, vocab);
}

struct Gap {
  size_t positions = 0, equal = 0;     // whose whole distribution has the same hash
  size_t texts = 0, equal_texts = 0;   // whose chain of hashes is the sampler's
  double mean_kl = 0, largest_kl = 0;  // of the sampler from the trainer, nats
  double largest_difference = 0;       // of a drawn token's log-probability
  size_t different_tokens = 0;
};

// ln of the sum of exp, for people, not for bits.
double log_sum(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - max);
  return max + std::log(sum);
}

void compare(std::span<const float> sampler, std::span<const float> trainer, int32_t drawn,
             Gap& gap) {
  PositionHasher hasher;
  const bool is_equal = hasher(sampler) == hasher(trainer);
  ++gap.positions;
  gap.equal += is_equal;
  if (is_equal) return;
  const double s = log_sum(sampler), t = log_sum(trainer);
  double kl = 0;
  for (size_t v = 0; v < sampler.size(); ++v) {
    const double a = sampler[v] - s, b = trainer[v] - t;
    kl += std::exp(a) * (a - b);
  }
  const auto at = static_cast<size_t>(drawn);
  const double difference = std::fabs((sampler[at] - s) - (trainer[at] - t));
  gap.mean_kl += kl;
  gap.largest_kl = std::max(gap.largest_kl, kl);
  gap.largest_difference = std::max(gap.largest_difference, difference);
  gap.different_tokens += difference != 0;
}

Gap gap_of(const std::vector<Text>& texts, size_t vocab, const LogitsOf& logits_of) {
  Gap gap;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    const std::vector<float> found = logits_of(i);
    ++gap.texts;
    gap.equal_texts += hash_of(found, vocab) == text.hash;
    for (size_t t = 0; t < text.answer; ++t)
      compare(std::span(text.logits).subspan(t * vocab, vocab),
              std::span(found).subspan(t * vocab, vocab), text.tokens[text.first + 1 + t], gap);
  }
  gap.mean_kl /= static_cast<double>(gap.positions);
  return gap;
}

json::Value to_json(const std::string& name, const Gap& gap) {
  return json::Object{{"trainer", name},
                      {"positions", static_cast<int64_t>(gap.positions)},
                      {"equal_positions", static_cast<int64_t>(gap.equal)},
                      {"texts", static_cast<int64_t>(gap.texts)},
                      {"equal_hashes", static_cast<int64_t>(gap.equal_texts)},
                      {"mean_kl", gap.mean_kl},
                      {"largest_kl", gap.largest_kl},
                      {"largest_difference", gap.largest_difference},
                      {"different_tokens", static_cast<int64_t>(gap.different_tokens)}};
}

void print_gap(const std::string& name, const Gap& gap) {
  fmt::print("{:24} {:>6} of {:<6} {:>4} of {:<4} {:10.3g} {:10.3g} {:12.3g} {:6}\n", name,
             gap.equal, gap.positions, gap.equal_texts, gap.texts, gap.mean_kl, gap.largest_kl,
             gap.largest_difference, gap.different_tokens);
}

}  // namespace

int audit_trainer(const ModelOptions& model, const TrainerAuditFlags& flags, bool json) {
  if (model.load_format != "auto")
    fail_usage("--trainer reads the weights of a directory, found --load-format {}",
               model.load_format);
  std::string identity;
  size_t vocab = 0;
  const std::vector<Text> texts = sampled_texts(model, flags, identity, vocab);
  json::Array rows;
  if (!json)
    fmt::print(
        "{}: the whole distribution at each position of {} answers\n{:24} {:>16} {:>12} "
        "{:>10} {:>10} {:>12} {:>6}\n",
        identity, texts.size(), "trainer", "equal positions", "equal hashes", "mean KL",
        "largest KL", "largest dlnp", "tokens");
  const auto add = [&](const std::string& name, const Gap& gap) {
    if (json)
      rows.push_back(to_json(name, gap));
    else
      print_gap(name, gap);
  };
  const Gap own = gap_of(texts, vocab, own_trainer(model, texts, vocab));
  add("invar", own);
  for (const std::string& what : flags.against)
    add(what, gap_of(texts, vocab, other_trainer(what, model.model, texts, vocab)));
  const bool passed = own.equal == own.positions && own.equal_texts == own.texts;
  if (json)
    fmt::print("{}\n", json::dump(json::Object{{"identity", identity},
                                               {"passed", passed},
                                               {"trainers", std::move(rows)}},
                                  2));
  else
    fmt::print("{}  {}\n", passed ? "PASSED" : "FAILED", identity);
  return passed ? 0 : 1;
}

}  // namespace invar::cli
