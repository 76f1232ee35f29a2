// invar evaluate: what a model trained on the corpus can do, on documents that no training saw.
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "command.h"
#include "help_format.h"
#include "number_flags.h"
#include "train/corpus/corpus.h"

namespace invar::cli {

namespace {

using corpus::Kind;

struct EvaluateFlags {
  ModelFlags model;
  EngineFlags engine;
  uint64_t seed = 1;
  int64_t documents = 400;
  int stories = 40;
};

class Transcripts final : public OutputSink {
 public:
  void on_token(const TokenOutput& output) override {
    tokens_[output.request].push_back(output.token);
  }
  std::string text(int64_t id, const Tokenizer& tokenizer) { return tokenizer.decode(tokens_[id]); }

 private:
  std::map<int64_t, std::vector<int32_t>> tokens_;
};

struct Question {
  Kind kind;
  std::string asked, right;
};

// A sum is right when its last line is; everything else when it is the same text.
bool is_right(const Question& question, const std::string& answer) {
  if (question.kind != Kind::arithmetic) return answer == question.right;
  const auto last_line = [](const std::string& text) { return text.substr(text.rfind('\n') + 1); };
  return last_line(answer) == last_line(question.right);
}

std::string kind_name(Kind kind) {
  return corpus::kKindNames[static_cast<size_t>(kind)];
}

// The question, without the story that it is about.
std::string last_paragraph(const std::string& text) {
  const size_t at = text.rfind("\n\n");
  return at == std::string::npos ? text : text.substr(at + 2);
}

// Different runs of four words among all of them.
double distinct_four_grams(const std::vector<std::string>& texts) {
  std::set<std::string> different;
  int64_t count = 0;
  for (const std::string& text : texts) {
    std::vector<size_t> begins{0};
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == ' ' || text[i] == '\n') begins.push_back(i + 1);
    begins.push_back(text.size() + 1);
    for (size_t i = 0; i + 4 < begins.size(); ++i, ++count)
      different.insert(text.substr(begins[i], begins[i + 4] - begins[i] - 1));
  }
  return count ? static_cast<double>(different.size()) / static_cast<double>(count) : 0;
}

class Evaluation {
 public:
  Evaluation(Instance& instance, const Tokenizer& tokenizer, const EvaluateFlags& flags)
      : engine_(instance.engine()), tokenizer_(tokenizer), flags_(flags) {}

  json::Value run() {
    json::Value report =
        json::Object{{"corpus seed", flags_.seed}, {"identity", engine_.model().identity()}};
    answer_questions(report);
    tell_stories(report);
    return report;
  }

 private:
  Request request(int64_t id, const std::string& prompt, double temperature) const {
    Request r{.id = id, .prompt = tokenizer_.encode(prompt)};
    r.params.temperature = temperature;
    r.params.max_tokens = 400;
    r.params.seed = static_cast<uint64_t>(id);
    r.hash_logits = false;
    add_end_tokens(r.params, engine_.model(), tokenizer_);
    return r;
  }

  Transcripts answer_all(std::vector<Request> requests) const {
    for (Request& r : requests) {
      r.params.max_tokens =
          length_that_fits(r.params.max_tokens, r.prompt.size(), engine_.max_model_len());
      engine_.add(std::move(r));
    }
    Transcripts answers;
    while (engine_.step(answers)) {
    }
    return answers;
  }

  void answer_questions(json::Value& report) const {
    std::vector<Question> questions;
    std::vector<Request> requests;
    for (int64_t i = 0; i < flags_.documents; ++i) {
      const corpus::Sample sample = corpus::make_sample(flags_.seed, corpus::Split::held_out, i);
      if (sample.kind != Kind::question && sample.kind != Kind::arithmetic &&
          sample.kind != Kind::copying)
        continue;
      const size_t last = sample.turns.size() - 1;
      requests.push_back(request(std::ssize(questions), corpus::prompt_of(sample, last), 0));
      questions.push_back({sample.kind, sample.turns[last].user, sample.turns[last].assistant});
    }
    Transcripts answers = answer_all(std::move(requests));
    std::map<Kind, std::pair<int, int>> right;
    json::Array samples;  // the first of each kind
    for (size_t i = 0; i < questions.size(); ++i) {
      const std::string answer = answers.text(static_cast<int64_t>(i), tokenizer_);
      auto& [good, all] = right[questions[i].kind];
      good += is_right(questions[i], answer);
      ++all;
      constexpr int kSamples = 3;
      if (all <= kSamples)
        samples.push_back(json::Object{{"kind", kind_name(questions[i].kind)},
                                       {"asked", last_paragraph(questions[i].asked)},
                                       {"answered", answer},
                                       {"right", questions[i].right}});
    }
    report.set("answers", std::move(samples));
    for (const auto& [kind, count] : right)
      report.set(kind_name(kind) + " accuracy",
                 json::Object{{"right", count.first},
                              {"of", count.second},
                              {"percent", 100.0 * count.first / count.second}});
  }

  void tell_stories(json::Value& report) const {
    std::vector<Request> requests;
    for (int64_t i = 0; i < flags_.stories; ++i)
      requests.push_back(
          request(i, "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", 1.0));
    Transcripts answers = answer_all(std::move(requests));
    std::vector<std::string> told, held_out;
    for (int64_t i = 0; i < flags_.stories; ++i) told.push_back(answers.text(i, tokenizer_));
    for (int64_t i = 0; std::ssize(held_out) < flags_.stories; ++i) {
      const corpus::Sample sample = corpus::make_sample(flags_.seed, corpus::Split::held_out, i);
      if (!sample.story.empty()) held_out.push_back(sample.story);
    }
    report.set("distinct 4-grams of told stories", distinct_four_grams(told));
    report.set("distinct 4-grams of held-out stories", distinct_four_grams(held_out));
    report.set("a story", told.empty() ? "" : told[0]);
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const EvaluateFlags& flags_;
};

int run_evaluate(const EvaluateFlags& flags) {
  const InstanceOptions options = instance_options(flags.model, flags.engine);
  Instance instance(options, open_with_progress(options));
  say_context(instance);
  const Tokenizer tokenizer = open_tokenizer(instance.model());
  fmt::print("{}\n", json::dump(Evaluation(instance, tokenizer, flags).run(), 2));
  return 0;
}

}  // namespace

void add_evaluate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "evaluate", "Evaluate a model of the training corpus on held-out documents");
  auto flags = std::make_shared<EvaluateFlags>();
  add_model_flags(*command, flags->model);
  add_engine_flags(*command, flags->engine);
  command->add_option("--corpus-seed", flags->seed, "Seed of the corpus")->capture_default_str();
  command->add_option("--documents", flags->documents, "Number of held-out documents to ask about")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--stories", flags->stories, "Number of stories to sample at temperature 1")
      ->check(at_least(1))
      ->capture_default_str();
  show_first(*command, {{"What is asked", {"--corpus-seed", "--documents", "--stories"}},
                        {"Speed and memory",
                         {"--device", "--threads", "--tensor-parallel-size", "--max-model-len"}}});
  command->callback([&action, flags] { action = [flags] { return run_evaluate(*flags); }; });
}

}  // namespace invar::cli
