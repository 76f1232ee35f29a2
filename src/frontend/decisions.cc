// POST /v1/decisions: questions about an input, each answered by what the model finds most likely
// of the answers that it may give, with the share that each has.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/likelihoods.h"
#include "frontend/questions.h"
#include "sampling/logprob.h"

namespace invar {

namespace {

constexpr size_t kMostQuestions = 200, kMostChoices = 255, kMostLevels = 10;
constexpr size_t kMostQuestionBytes = 64 << 10, kMostChoiceBytes = 4 << 10, kMostIdBytes = 256;
constexpr size_t kMostInputBytes = 4 << 20, kMostMessages = 4096;
constexpr size_t kOfOption = 256;  // bytes of memory beside its text, in the answer
constexpr std::string_view kFields[] = {"model", "input", "instructions", "questions", "receipt"};
constexpr std::string_view kQuestionFields[] = {"id", "type", "question", "choices", "levels"};

// An allowed answer: as the model says it, and as the body shows it.
struct Option {
  std::string said;
  json::Value shown;
};

struct Question {
  std::string id, type, text;  // the text says which answers there are
  std::vector<Option> options;
  std::vector<size_t> likelihoods;  // of each option, its number
};

template <size_t N>
void expect_known(const json::Value& object, const std::string_view (&names)[N]) {
  for (const auto& [name, value] : object.as_object())
    if (std::ranges::find(names, name) == std::end(names))
      fail_usage("expected fields among {}, found {}", fmt::join(names, ", "),
                 json::quoted(name.substr(0, 64)));
}

const json::Value& needed(const json::Value& object, std::string_view name) {
  const json::Value* found = BodyFields(object).find(name);
  if (!found) fail_usage("expected \"{}\" in the body of the request", name);
  return *found;
}

// As they are, and each once: no two have the same share.
std::vector<Option> choices_of(const json::Value& question) {
  std::vector<Option> options;
  for (const json::Value& choice : list_of(needed(question, "choices"), "choices", kMostChoices)) {
    const std::string& text = text_of(choice, "choices", kMostChoiceBytes);
    if (text.empty()) fail_usage("expected choices of at least one byte, found an empty one");
    if (std::ranges::find(options, text, &Option::said) != options.end())
      fail_usage("expected choices that differ, found {} twice", json::quoted(text));
    options.push_back({text, text});
  }
  if (options.size() < 2) fail_usage("expected at least 2 choices, found {}", options.size());
  return options;
}

// Numbers from 1 on: `levels` says how many, or describes each.
std::vector<Option> levels_of(const json::Value& question, std::string& described) {
  const json::Value& levels = needed(question, "levels");
  size_t count = 0;
  if (levels.is_array()) {
    for (const json::Value& level : list_of(levels, "levels", kMostLevels))
      described += fmt::format("\n{}: {}", ++count, text_of(level, "levels", kMostChoiceBytes));
  } else {
    count = static_cast<size_t>(integer_of(levels, "levels", 2, kMostLevels));
  }
  if (count < 2) fail_usage("expected at least 2 levels, found {}", count);
  std::vector<Option> options;
  for (size_t i = 1; i <= count; ++i)
    options.push_back({std::to_string(i), static_cast<int64_t>(i)});
  return options;
}

Question question_of(const json::Value& value) {
  if (!value.is_object()) fail_usage("expected questions as objects, found {}", value.type_name());
  expect_known(value, kQuestionFields);
  Question question{.type = text_of(needed(value, "type"), "type", kMostIdBytes),
                    .text = text_of(needed(value, "question"), "question", kMostQuestionBytes)};
  if (const json::Value* id = BodyFields(value).find("id"))
    question.id = text_of(*id, "id", kMostIdBytes);
  if (question.type == "predicate") {
    question.options = {{"yes", true}, {"no", false}};
    question.text += "\nAnswer with one word, yes or no.";
  } else if (question.type == "choice") {
    question.options = choices_of(value);
    question.text += "\nAnswer with exactly one of these, and nothing else:";
    for (const Option& option : question.options) question.text += "\n" + option.said;
  } else if (question.type == "score") {
    std::string described;
    question.options = levels_of(value, described);
    question.text += fmt::format("\nAnswer with one number from 1 to {}, and nothing else.{}",
                                 question.options.size(), described);
  } else {
    fail_usage("expected a type of predicate, choice or score, found {}",
               json::quoted(question.type));
  }
  return question;
}

// The conversation in which the question is asked: the input before it, in the same turn or in
// those that it has.
json::Value chat_of(const json::Value& body, const Question& question) {
  json::Array messages;
  if (const json::Value* told = BodyFields(body).find("instructions"))
    messages.push_back(json::Object{
        {"role", "system"}, {"content", text_of(*told, "instructions", kMostQuestionBytes)}});
  const json::Value& input = needed(body, "input");
  std::string text = question.text;
  if (input.is_array())
    std::ranges::copy(list_of(input, "input", kMostMessages), std::back_inserter(messages));
  else
    text = text_of(input, "input", kMostInputBytes) + "\n\n" + text;
  messages.push_back(json::Object{{"role", "user"}, {"content", std::move(text)}});
  json::Value chat =
      json::Object{{"messages", std::move(messages)},
                   {"max_tokens", 1},
                   {"chat_template_kwargs", json::Object{{"enable_thinking", false}}}};
  if (const json::Value* model = BodyFields(body).find("model")) chat.set("model", *model);
  return chat;
}

// The most likely option, of equal ones the first, and the share of each.
json::Value answer_to(const Question& question, const Likelihoods& likelihoods,
                      const Numbers& numbers) {
  std::vector<float> logs;
  for (const size_t text : question.likelihoods)
    logs.push_back(likelihoods.log_probability(text, numbers));
  const std::vector<float> shares = shares_of(logs);
  const auto best = static_cast<size_t>(std::ranges::max_element(shares) - shares.begin());
  json::Array probabilities;
  double mean = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto share = static_cast<double>(shares[i]);
    mean += share * static_cast<double>(i + 1);
    probabilities.push_back(json::Object{{"answer", question.options[i].shown},
                                         {"probability", share},
                                         {"logprob", static_cast<double>(logs[i])}});
  }
  json::Value answer = json::Object{{"type", question.type},
                                    {"answer", question.options[best].shown},
                                    {"confidence", static_cast<double>(shares[best])},
                                    {"probabilities", std::move(probabilities)}};
  if (!question.id.empty()) answer.set("id", question.id);
  if (question.type == "score") answer.set("expected", mean);
  return answer;
}

}  // namespace

NumbersAsked decisions_asked(const json::Value& body, const QuestionTexts& texts) {
  expect_known(body, kFields);
  Likelihoods likelihoods(texts.salt, texts.context);
  std::vector<Question> questions;
  for (const json::Value& value : list_of(needed(body, "questions"), "questions", kMostQuestions)) {
    const std::string field = fmt::format("questions[{}]", questions.size());
    Question& question = questions.emplace_back(said_of(field, [&] { return question_of(value); }));
    const std::vector<int32_t> prompt =
        said_of("input", [&] { return texts.chat_tokens(chat_of(body, question), "input"); });
    for (const Option& option : question.options) {
      std::vector<int32_t> text = texts.text_tokens(option.said, false);
      // No option is another one's beginning.
      if (const auto end = texts.end_of_answer()) text.push_back(*end);
      question.likelihoods.push_back(
          said_of("input", [&] { return likelihoods.add(prompt, text); }));
    }
  }
  if (questions.empty()) fail_usage("expected at least one of questions, found none");
  return {.requests = likelihoods.requests(),
          .bytes = likelihoods.bytes() + kOfOption * likelihoods.texts(),
          .body = [=](const Numbers& numbers, const NumbersHead& head) {
            json::Array answers;
            for (const Question& question : questions)
              answers.push_back(answer_to(question, likelihoods, numbers));
            const int64_t tokens = likelihoods.prompt_tokens();
            json::Value all = json::Object{
                {"id", head.id},
                {"object", "decision"},
                {"created", head.created},
                {"model", head.model},
                {"system_fingerprint", head.fingerprint},
                {"answers", std::move(answers)},
                {"usage", json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
            if (!head.receipt.is_null()) all.set("receipt", head.receipt);
            return json::dump(all);
          }};
}

}  // namespace invar
