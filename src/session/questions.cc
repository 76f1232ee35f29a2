#include "session/questions.h"

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "base/timer.h"
#include "session/instance.h"
#include "session/open.h"
#include "session/verify.h"

namespace invar {

namespace {

// The requests as an engine of their own computes them, several at a time.
Numbers computed(std::vector<Request> requests, const std::shared_ptr<Model>& model,
                 const Tokenizer& tokenizer) {
  constexpr int kAtOnce = 32;
  size_t longest = 1;
  for (const Request& request : requests) longest = std::max(longest, request.prompt.size());
  InstanceOptions options{.model = model->options()};
  options.engine.scheduler.max_num_seqs = kAtOnce;
  options.engine.scheduler.max_model_len =
      std::min(static_cast<int32_t>(longest) + 1, model->spec().max_positions);
  options.engine.embeddings = true;
  Instance instance(options, model);
  EngineLoop loop(instance.engine(), tokenizer);
  return numbers_of(loop.last_events(std::move(requests), {}));
}

std::string number_difference(const NumbersReceipt& receipt, const Numbers& numbers) {
  if (receipt.numbers.size() != numbers.size())
    return fmt::format("the numbers differ: the receipt has {}, the question asks for {}",
                       receipt.numbers.size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i)
    if (const std::string found = numbers_text(numbers[i]); found != receipt.numbers[i])
      return fmt::format("number {} differs: the receipt says {}, the model says {}", i + 1,
                         receipt.numbers[i], found);
  return {};
}

}  // namespace

QuestionTexts question_texts(const Model& model, const Tokenizer& tokenizer,
                             const ChatTemplate* chat, int32_t context, int64_t created,
                             const std::string& no_chat) {
  openai::Context how{.vocab = static_cast<int32_t>(model.spec().vocab),
                      .tokenizer = &tokenizer,
                      .end_tokens = end_tokens(model, tokenizer),
                      .chat = chat,
                      .no_chat = no_chat,
                      .clock = [created] { return utc_time(created); },
                      .ignores_unknown = true};
  if (chat) how.tool_format = chat->tool_format();
  if (chat) how.thought_format = thought_format_of(chat->source());
  const NumberForm form = open_number_form(model.options());
  const auto read = [how, form](const json::Value& body, openai::Endpoint endpoint,
                                const std::string& field) {
    if (endpoint == openai::Endpoint::chat && !form.has_head)
      fail_usage("the model has no head that predicts tokens: it makes no answers");
    return within(field, [&] { return openai::parse_request(body, endpoint, how); });
  };
  return {.read = read,
          .check_model = [](const std::string&) {},
          .tokenizer = &tokenizer,
          .chat = chat,
          .clock = how.clock,
          .end_tokens = how.end_tokens,
          .form = form,
          .context = context,
          .vector_size = static_cast<int32_t>(model.config().pooling.outputs(model.spec().hidden)),
          .salt = {}};
}

Numbers numbers_of(std::vector<AnswerEvent> events) {
  Numbers numbers;
  for (AnswerEvent& event : events) {
    const auto& answer = event.answer;
    if (!answer)
      numbers.push_back(std::move(event.vector));
    else if (answer->finish == FinishReason::failed || answer->logprobs.empty())
      fail("expected the log-probability of a token, found none: {}",
           answer->error.empty() ? "the answer has no token" : answer->error);
    else
      numbers.push_back({first_of(answer->logprobs).logprob});
  }
  return numbers;
}

NumbersVerdict verify(const NumbersReceipt& receipt, const ReceiptModel& known,
                      const std::shared_ptr<Model>& model, const Tokenizer& tokenizer,
                      const ChatTemplate* chat) {
  if (const auto found = model_difference(receipt.model, known)) return {.sentence = *found};
  if (receipt.context < 1 || receipt.context > model->spec().max_positions)
    fail("a receipt: expected a context of 1 to {} tokens, found {}", model->spec().max_positions,
         receipt.context);
  const Timer timer;
  NumbersAsked asked =
      numbers_asked(receipt.endpoint, json::parse(receipt.body, "the receipt's question"),
                    question_texts(*model, tokenizer, chat, receipt.context, receipt.created));
  const Numbers numbers = computed(std::move(asked.requests), model, tokenizer);
  NumbersVerdict verdict{.sentence = number_difference(receipt, numbers),
                         .numbers = numbers.size(),
                         .seconds = timer.seconds()};
  verdict.is_confirmed = verdict.sentence.empty();
  if (!verdict.is_confirmed) return verdict;
  verdict.sentence = fmt::format("confirmed: {} numbers of {}", numbers.size(), receipt.endpoint);
  NumbersHead head = head_of(receipt);
  head.receipt = to_json(receipt);
  verdict.body = asked.body(numbers, head);
  return verdict;
}

}  // namespace invar
