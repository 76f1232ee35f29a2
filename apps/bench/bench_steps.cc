#include "bench_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/error.h"
#include "base/timer.h"
#include "bench_prompt.h"
#include "engine/executor.h"
#include "median.h"
#include "workload/mixtures.h"

namespace invar::cli {

namespace {

constexpr int kSlots = 64, kChunk = 512, kFilled = 2048;

int64_t blocks_of(int64_t tokens) {
  return (tokens + kSlots - 1) / kSlots;
}

// The last rows of a sequence of `length` tokens. It shares the first of these tokens with the
// first sequence.
struct Rows {
  int64_t length, rows = 1, shared = 0;
};

// Runs single steps whose sequences need not have been computed: their blocks are copies of a
// prompt's.
class StepBench {
 public:
  StepBench(Model& model, int64_t tokens, int64_t sequences, int64_t rows)
      : model_(model),
        blocks_(static_cast<int32_t>(blocks_of(tokens) + sequences)),
        executor_(model, {.blocks = blocks_,
                          .block_size = kSlots,
                          .max_rows = static_cast<int32_t>(std::max<int64_t>(rows, kChunk)),
                          .max_logit_rows = static_cast<int32_t>(sequences),
                          .cells = static_cast<int32_t>(sequences)}) {
    fill();
  }

  // A step with the last rows of these sequences, each of which samples one.
  Batch batch(const std::vector<Rows>& sequences) const {
    Batch batch;
    int32_t block = 0;
    for (const Rows& s : sequences) {
      const auto index = static_cast<int32_t>(batch.sequences.size());
      for (int64_t i = s.length - s.rows; i < s.length; ++i)
        batch.rows.push_back(
            {.token = static_cast<int32_t>((index * 31 + i * 7) % model_.spec().vocab),
             .position = static_cast<int32_t>(i),
             .sequence = index});
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()) - 1);
      batch.sequences.push_back({.cell = index});
      batch.sequences.back().blocks.resize(static_cast<size_t>(blocks_of(s.length)));
      auto& blocks = batch.sequences.back().blocks;
      for (size_t i = 0; i < blocks.size(); ++i)
        blocks[i] = static_cast<int64_t>(i + 1) * kSlots <= s.shared && index > 0
                        ? batch.sequences[0].blocks[i]
                        : block++;
    }
    if (block > blocks_) fail("expected steps of up to {} blocks, found {}", blocks_, block);
    return batch;
  }

  // Seconds of each batch's step, the medians of so many rounds, in turn.
  std::vector<double> seconds(const std::vector<Batch>& batches, int rounds) {
    constexpr int kSteps = 8;  // of a round, after three that may be recorded
    std::vector<std::vector<double>> all(batches.size());
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < batches.size(); ++i)
        for (int step = -3; step < kSteps; ++step) {
          const double took = run(batches[i]);
          if (step >= 0) all[i].push_back(took);
        }
    std::vector<double> medians;
    for (auto& times : all) medians.push_back(median(std::move(times)));
    return medians;
  }

 private:
  double run(const Batch& batch) {
    ForwardIo io;
    io.keep_logits = true;  // the sampler reads them there
    const Timer timer;
    executor_.run(batch, io);
    executor_.decoder().execution.stream->wait();
    return timer.seconds();
  }

  void fill() {
    const int64_t filled =
        std::min<int64_t>({kFilled, int64_t{blocks_} * kSlots, model_.spec().max_positions});
    const std::vector<int32_t> prompt = bench_prompt(0, filled, model_.spec().vocab);
    Batch batch;
    batch.sequences.push_back({.cell = 0});
    batch.sequences[0].blocks.resize(static_cast<size_t>(blocks_of(filled)));
    std::iota(batch.sequences[0].blocks.begin(), batch.sequences[0].blocks.end(), 0);
    for (int64_t begin = 0; begin < filled; begin += kChunk) {
      batch.rows.clear();
      for (int64_t i = begin; i < std::min(filled, begin + kChunk); ++i)
        batch.rows.push_back({.token = prompt[static_cast<size_t>(i)],
                              .position = static_cast<int32_t>(i),
                              .sequence = 0});
      batch.logit_rows = {0};
      run(batch);
    }
    std::vector<SlotCopy> copies;
    const auto from = static_cast<int32_t>(blocks_of(filled));
    for (int32_t to = from; to < blocks_; ++to) copies.push_back({to % from, to, 0, kSlots});
    executor_.copy_slots(copies);
  }

  Model& model_;
  const int32_t blocks_;
  Executor executor_;
};

std::vector<Rows> decoding(const Mixture& mixture) {
  std::vector<Rows> rows;
  for (const int64_t length : mixture.lengths) rows.push_back({length});
  return rows;
}

// Mixtures beside an even batch of as many sequences and tokens.
void print_ragged(Model& model, const std::vector<Mixture>& mixtures, int rounds) {
  const int64_t sequences = std::ssize(mixtures.front().lengths),
                tokens = mixtures.front().tokens();
  StepBench bench(model, tokens + sequences * (1 + std::ssize(mixtures)), sequences, sequences);
  std::vector<Batch> batches = {bench.batch(decoding(even_mixture(sequences, tokens / sequences)))};
  for (const Mixture& m : mixtures) batches.push_back(bench.batch(decoding(m)));
  const std::vector<double> seconds = bench.seconds(batches, rounds);
  for (size_t i = 0; i < seconds.size(); ++i)
    fmt::print("  {:4} {:26} {:9} {:9.3f} {:8.3f}\n", sequences, i ? mixtures[i - 1].name : "even",
               i ? mixtures[i - 1].longest() : tokens / sequences, 1e3 * seconds[i],
               seconds[i] / seconds[0]);
  std::fflush(stdout);
}

// A step of a chunk and of sequences that decode, beside its parts, each by difference: steps whose
// rows have nothing before them have as good as no attention.
void print_mixed(Model& model, int64_t rows, int64_t decodes, int64_t context, int rounds) {
  constexpr int64_t kShort = 64;  // rows of a sequence that see nothing but each other
  const auto with = [](std::vector<Rows> a, const std::vector<Rows>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<Rows> chunk = {{std::max(context, rows), rows}},
                          decode(static_cast<size_t>(decodes), {context}),
                          bare_decode(static_cast<size_t>(decodes), {1});
  std::vector<Rows> bare_chunk(static_cast<size_t>(rows / kShort), {kShort, kShort});
  if (rows % kShort) bare_chunk.push_back({rows % kShort, rows % kShort});
  StepBench bench(model, decodes * context + std::max(context, rows),
                  decodes + 1 + std::ssize(bare_chunk), decodes + rows);
  const std::vector<double> s = bench.seconds(
      {bench.batch(with(decode, chunk)), bench.batch(with(bare_decode, bare_chunk)),
       bench.batch(chunk), bench.batch(bare_chunk), bench.batch(decode), bench.batch(bare_decode)},
      rounds);
  const double chunk_attention = s[2] - s[3], decode_attention = s[4] - s[5],
               parts = s[1] + chunk_attention + decode_attention;
  const auto line = [](const char* what, double seconds) {
    fmt::print("  {:52} {:9.3f} ms\n", what, 1e3 * seconds);
  };
  line("products and the rest, without attention", s[1]);
  line("attention of the chunk", chunk_attention);
  line("attention of the decodes", decode_attention);
  line("sum", parts);
  line("mixed step", s[0]);
  fmt::print("  {:52} {:9.3f} x\n", "mixed step over the sum", s[0] / parts);
  line("the chunk alone", s[2]);
  line("the decodes alone", s[4]);
}

// Sequences that decode behind a prefix: each with blocks of its own, and all in the same blocks.
void print_shared(Model& model, int64_t sequences, int64_t prefix, int64_t own, int rounds) {
  StepBench bench(model, sequences * (prefix + own), sequences, sequences);
  const auto rows = [&](int64_t shared) {
    return std::vector<Rows>(static_cast<size_t>(sequences), {prefix + own, 1, shared});
  };
  const std::vector<double> s =
      bench.seconds({bench.batch(rows(0)), bench.batch(rows(prefix))}, rounds);
  fmt::print("  {:52} {:9.3f} ms\n  {:52} {:9.3f} ms\n  {:52} {:9.3f} x\n",
             "each in its own memory", 1e3 * s[0], "shared", 1e3 * s[1], "as fast, shared",
             s[0] / s[1]);
}

void check_shared(const std::vector<int>& shared, int64_t most) {
  if (shared.empty()) return;
  if (shared.size() != 3 || std::ranges::min(shared) < 1 || int64_t{shared[1]} + shared[2] > most)
    fail_usage(
        "expected --shared SEQUENCES,PREFIX,OWN: three numbers from 1 on, at most {} tokens of a "
        "sequence, found {}",
        most, fmt::join(shared, ","));
}

void check(const StepFlags& flags, const std::vector<int>& batches, const DecoderSpec& spec) {
  const int64_t most = spec.max_positions;
  for (const int n : flags.contexts)
    if (n < 1 || n > most) fail_usage("expected --contexts from 1 to {} tokens, found {}", most, n);
  for (const int n : batches)
    if (n < 1) fail_usage("expected --batches of 1 or more sequences, found {}", n);
  if (flags.mean < 1) fail_usage("expected --mean of 1 or more tokens, found {}", flags.mean);
  check_shared(flags.shared, most);
  if (flags.mixed.empty()) return;
  if (flags.mixed.size() != 3 || std::ranges::min(flags.mixed) < 1 ||
      std::max(flags.mixed[0], flags.mixed[2]) > most)
    fail_usage(
        "expected --mixed ROWS,DECODES,CONTEXT: three numbers from 1 on, rows and context up to "
        "{}, found {}",
        most, fmt::join(flags.mixed, ","));
}

}  // namespace

int run_step_bench(const StepFlags& flags, const ModelOptions& options,
                   const std::vector<int>& batches, int rounds) {
  Model model(options, {}, launch_of(options));
  const int64_t most = model.spec().max_positions;
  check(flags, batches, model.spec());
  fmt::print("{} on {}, {}, medians of {} rounds\n", options.model, options.device,
             model.identity(), rounds);
  if (!flags.mixed.empty()) {
    fmt::print("\n{} rows of a prompt and {} sequences that decode behind {} tokens\n",
               flags.mixed[0], flags.mixed[1], flags.mixed[2]);
    print_mixed(model, flags.mixed[0], flags.mixed[1], flags.mixed[2], rounds);
  }
  if (!flags.shared.empty()) {
    fmt::print("\n{} sequences that decode behind a prefix of {} tokens and {} of their own\n",
               flags.shared[0], flags.shared[1], flags.shared[2]);
    print_shared(model, flags.shared[0], flags.shared[1], flags.shared[2], rounds);
  }
  if (!flags.ragged && flags.contexts.empty()) return 0;
  fmt::print("\n  rows of contexts                  longest   ms/step   x even\n");
  if (!flags.contexts.empty())
    print_ragged(model, {{"these", {flags.contexts.begin(), flags.contexts.end()}}}, rounds);
  for (size_t i = 0; flags.ragged && i < batches.size(); ++i) {
    std::vector<Mixture> mixtures = ragged_mixtures(batches[i], flags.mean);
    std::erase_if(mixtures, [&](const Mixture& m) { return m.longest() > most; });
    if (!mixtures.empty()) print_ragged(model, mixtures, rounds);
  }
  return 0;
}

}  // namespace invar::cli
