#include "train/corpus/corpus.h"

#include <fmt/format.h>

#include "train/corpus/phrase.h"
#include "train/corpus/story.h"

namespace invar::corpus {

namespace {

constexpr std::string_view kEnd = "<|endoftext|>";

Sample ask_about(Random& random, const Story& story) {
  Sample sample{.kind = Kind::question, .story = story.text};
  const int count = random.between(4, 8);
  for (int i = 0; i < count; ++i) {
    const Question& q = story.questions[static_cast<size_t>(i)];
    sample.turns.push_back({i == 0 ? story.text + "\n\n" + q.question : q.question, q.answer});
  }
  return sample;
}

Sample ask_for(Random& random, const Story& story) {
  Phrases p(random);
  p.set("hero", story.hero);
  p.set("kind", story.hero_kind);
  p.set("about", story.about);
  const char* about = "[ about {a kind} named {hero}| about {about}| about {a kind}|]";
  std::string request = p(
      fmt::format(fmt::runtime(random.one_in(4)
                                   ? "Can you tell me a story{}?"
                                   : "[Tell me a story|Write a story|Please tell a story|I want to "
                                     "hear a story]{}."),
                  about));
  return {.kind = Kind::request, .story = story.text, .turns = {{std::move(request), story.text}}};
}

Sample exercises(Random& random, Kind kind, Turn (*make)(Random&), int most) {
  Sample sample{.kind = kind};
  for (int i = random.between(1, most); i > 0; --i) sample.turns.push_back(make(random));
  return sample;
}

std::string message(std::string_view role, const std::string& text) {
  return fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, text);
}

std::string system_text(const Sample& sample) {
  return sample.system.empty() ? "" : message("system", sample.system);
}

// The text that the model is given, up to where its answer begins.
std::string user_text(const Turn& turn) {
  return message("user", turn.user) + "<|im_start|>assistant\n";
}

Kind kind_of(int choice) {
  if (choice >= 96) return Kind::talk;
  if (choice >= 80) return Kind::copying;
  if (choice >= 62) return Kind::arithmetic;
  if (choice >= 34) return Kind::question;
  if (choice >= 20) return Kind::request;
  return Kind::story;
}

Sample make(Random& random, Kinds kinds) {
  Kind kind;
  do kind = kind_of(random.below(100));
  while (!(kinds & bit_of(kind)));
  if (kind == Kind::talk) return exercises(random, kind, make_talk, 4);
  if (kind == Kind::copying) return exercises(random, kind, make_copying, 5);
  if (kind == Kind::arithmetic) return exercises(random, kind, make_arithmetic, 4);
  if (kind == Kind::question) return ask_about(random, make_story(random, 1));
  const Story story = make_story(random, 2);
  if (kind == Kind::request) return ask_for(random, story);
  return {.kind = Kind::story, .story = story.text};
}

}  // namespace

// 100 documents are 20 stories, 28 with questions, 14 requests, 18 of sums, 16 of copying, 4 of
// talk, and in the same proportions where some are left out. One conversation in six has a system
// message.
Sample make_sample(uint64_t seed, Split split, int64_t index, Kinds kinds) {
  Random random(seed, index, split);
  Sample sample = make(random, kinds);
  if (!sample.turns.empty() && random.one_in(6))
    sample.system = Phrases(random)(
        "[You are a helpful assistant.|You are a friendly assistant.|You are Invar, a small "
        "language "
        "model.|Answer briefly.|Be kind.]");
  return sample;
}

std::string prompt_of(const Sample& sample, size_t turn) {
  std::string text = system_text(sample);
  for (size_t i = 0; i < turn; ++i)
    text += user_text(sample.turns[i]) + sample.turns[i].assistant + "<|im_end|>\n";
  return text + user_text(sample.turns[turn]);
}

std::string text_of(const Sample& sample) {
  if (sample.turns.empty()) return sample.story + std::string(kEnd);
  const size_t last = sample.turns.size() - 1;
  return prompt_of(sample, last) + sample.turns[last].assistant + "<|im_end|>\n";
}

Documents::Documents(uint64_t seed, Split split, const Tokenizer& tokenizer, Kinds kinds)
    : seed_(seed), split_(split), tokenizer_(tokenizer), kinds_(kinds) {}

void Documents::append(std::string_view text, bool wanted, Document& document) const {
  const auto ids = tokenizer_.encode(text);
  document.tokens.insert(document.tokens.end(), ids.begin(), ids.end());
  document.wanted.insert(document.wanted.end(), ids.size(), wanted);
}

Document Documents::document(int64_t index) {
  const Sample sample = make_sample(seed_, split_, index, kinds_);
  Document document;
  if (sample.turns.empty()) append(sample.story + std::string(kEnd), true, document);
  append(system_text(sample), false, document);
  for (size_t i = 0; i < sample.turns.size(); ++i) {
    const Turn& turn = sample.turns[i];
    append(user_text(turn), false, document);
    append(turn.assistant + "<|im_end|>", true, document);
    append("\n", false, document);
  }
  return document;
}

}  // namespace invar::corpus
