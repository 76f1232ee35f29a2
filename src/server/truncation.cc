// Responses with "truncation": "auto": the oldest turns are left out until the rest fits.
#include "admission.h"
#include "errors.h"
#include "frontend/responses.h"

namespace invar::server {

namespace {

constexpr const char* kTooLong = "context_length_exceeded";

// Tokens that the answer is to have: what it asks for, or an eighth of the context, and no more
// than half of it.
int64_t room_for_answer(const json::Value& body, int32_t context) {
  const json::Value* asked = body.find("max_output_tokens");
  const int64_t tokens = asked ? asked->to_integer().value_or(context / 8) : context / 8;
  return std::clamp<int64_t>(tokens, 1, std::max(1, context / 2));
}

}  // namespace

openai::Request Admission::read_fitting(const JournalEntry& entry, const json::Value& body,
                                        const std::optional<std::string>& earlier) const {
  json::Array items;
  if (earlier) items = json::parse(*earlier, "a conversation").as_array();
  for (json::Value& item : openai::input_items(body)) items.push_back(std::move(item));
  const int32_t context = backend_.facts().max_model_len;
  const int64_t most = context - room_for_answer(body, context);
  const auto without = [&](size_t turns) {
    json::Value cut = body;
    cut.set("input", openai::without_turns(items, turns));
    cut.set("previous_response_id", nullptr);
    return read(entry, cut);
  };
  const auto fits = [&](size_t turns) {
    try {
      const openai::Request request = without(turns);
      return std::ssize(encode(request, request.prompts.front())) <= most;
    } catch (const ApiError& error) {
      if (error.code == kTooLong) return false;
      throw;
    }
  };
  const size_t turns = openai::turns_of(items);
  if (turns < 2 || fits(0)) return read(entry, body, earlier);
  size_t low = 0, high = turns - 1;  // `low` is too many tokens; the last turn stays
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  openai::Request request = without(high);
  if (const json::Value* id = body.find("previous_response_id")) request.asked_previous = *id;
  request.warnings.add(fmt::format("the {} oldest turns are left out (truncation auto)", high));
  return request;
}

}  // namespace invar::server
