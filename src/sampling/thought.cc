#include "sampling/thought.h"

#include <algorithm>

namespace invar {

namespace {

constexpr std::string_view kBlankBytes = " \t\r\n";

}  // namespace

ThoughtMarks::ThoughtMarks(std::string opening, std::string closing,
                           std::vector<std::string> texts_of)
    : open(std::move(opening)),
      close(std::move(closing)),
      opens({open}),
      closes({close}),
      texts(std::move(texts_of)) {
  for (size_t id = 0; id < texts.size(); ++id)
    if (const size_t end = texts[id].find(close.back());
        end != std::string::npos && end + 1 < texts[id].size())
      may_cross.push_back(static_cast<int32_t>(id));
}

ThoughtCursor::ThoughtCursor(std::shared_ptr<const ThoughtRules> rules, bool is_held, int32_t vocab)
    : rules_(std::move(rules)), is_held_(is_held), words_((static_cast<size_t>(vocab) + 63) / 64) {
  if (!rules_) return;
  enter(rules_->begun ? Place::within : is_held_ ? Place::opening : Place::before);
}

// Goes to a place, or past it where nothing is to be done there.
void ThoughtCursor::enter(Place place) {
  place_ = place;
  matched_ = 0;
  next_ = 0;
  if (place == Place::within && spent_ == rules_->budget) return enter(Place::closing);
  if (place == Place::then && (!is_held_ || rules_->marks->then_tokens.empty()))
    enter(Place::behind);
}

const std::vector<int32_t>* ThoughtCursor::written() const {
  if (!rules_) return nullptr;
  if (place_ == Place::opening) return &rules_->marks->open_tokens;
  if (place_ == Place::closing) return &rules_->marks->close_tokens;
  return place_ == Place::then ? &rules_->marks->then_tokens : nullptr;
}

// Within a thought that a form follows, no token goes on behind the mark, where the form begins,
// and none ends the answer.
std::span<const uint64_t> ThoughtCursor::allowed(const SamplingParams& params) {
  const auto bit = [](int32_t token) { return uint64_t{1} << (token % 64); };
  if (const auto* tokens = written()) {
    const int32_t token = (*tokens)[next_];
    allowed_.assign(words_, 0);
    allowed_[static_cast<size_t>(token) / 64] = bit(token);
    return allowed_;
  }
  if (place_ != Place::within || !is_held_) return {};
  allowed_.assign(words_, ~uint64_t{0});
  const auto exclude = [&](int32_t token) {
    if (const auto word = static_cast<size_t>(token) / 64; word < words_)
      allowed_[word] &= ~bit(token);
  };
  for (const int32_t token : params.stop_token_ids) exclude(token);
  const ThoughtMarks& marks = *rules_->marks;
  for (const int32_t token : marks.may_cross) {
    StopSet::State state = matched_;
    const std::string& text = marks.texts[static_cast<size_t>(token)];
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      state = marks.closes.next(state, text[i]);
      if (marks.closes.stop_length(state) > 0) {
        exclude(token);
        break;
      }
    }
  }
  return allowed_;
}

void ThoughtCursor::advance(int32_t token) {
  if (!rules_) return;
  if (const auto* tokens = written()) {
    if (++next_ < tokens->size()) return;
    return enter(place_ == Place::opening   ? Place::within
                 : place_ == Place::closing ? Place::then
                                            : Place::behind);
  }
  const auto& texts = rules_->marks->texts;
  std::string_view text;  // a token beyond the tokenizer's has none
  if (static_cast<size_t>(token) < texts.size()) text = texts[static_cast<size_t>(token)];
  if (place_ == Place::before) return take_before(text);
  if (place_ == Place::within) return take_within(text);
  take_behind(text);
}

// The mark stands at the beginning, but for white space, or there is no thought.
void ThoughtCursor::take_before(std::string_view text) {
  const ThoughtMarks& marks = *rules_->marks;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t have = marks.opens.length(matched_);
    if (have == 0 && kBlankBytes.find(text[i]) != kBlankBytes.npos) continue;
    if (text[i] != marks.open[have]) {
      enter(Place::behind);
      return take_behind(text.substr(i));
    }
    matched_ = marks.opens.next(matched_, text[i]);
    if (marks.opens.stop_length(matched_) == 0) continue;
    enter(Place::within);
    if (place_ == Place::within && i + 1 < text.size()) take_within(text.substr(i + 1));
    return;
  }
}

void ThoughtCursor::take_within(std::string_view text) {
  const ThoughtMarks& marks = *rules_->marks;
  for (size_t i = 0; i < text.size(); ++i) {
    matched_ = marks.closes.next(matched_, text[i]);
    if (marks.closes.stop_length(matched_) == 0) continue;
    enter(Place::then);
    return take_behind(text.substr(i + 1));
  }
  if (++spent_ == rules_->budget) enter(Place::closing);
}

// Where an answer may have several thoughts, looks for the next.
void ThoughtCursor::take_behind(std::string_view text) {
  const ThoughtMarks& marks = *rules_->marks;
  if (!marks.repeats || is_held_) return;
  for (const char byte : text) {
    matched_ = marks.opens.next(matched_, byte);
    if (marks.opens.stop_length(matched_) > 0) return enter(Place::within);
  }
}

}  // namespace invar
