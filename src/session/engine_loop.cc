#include "session/engine_loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace invar {

EngineLoop::Mailbox::~Mailbox() {
  loop_.between_steps([this](Engine&) {
    std::erase_if(loop_.mailboxes_, [this](const auto& entry) {
      if (entry.second != this) return false;
      loop_.text_.abort(entry.first);
      return true;
    });
  });
}

int64_t EngineLoop::add(Request request, Mailbox& mailbox) {
  return between_steps([&](Engine&) {
    const int64_t id = text_.submit(std::move(request));
    mailboxes_.emplace(id, &mailbox);
    return id;
  });
}

void EngineLoop::cancel(int64_t id, Mailbox& mailbox) {
  between_steps([&](Engine&) {
    std::erase_if(mailbox.events_, [id](const AnswerEvent& event) { return event.id == id; });
    const auto found = mailboxes_.find(id);
    if (found == mailboxes_.end() || found->second != &mailbox) return;
    mailboxes_.erase(found);
    text_.abort(id);
  });
}

bool EngineLoop::is_live(const Mailbox& mailbox) const {
  return std::ranges::any_of(mailboxes_,
                             [&](const auto& entry) { return entry.second == &mailbox; });
}

std::vector<AnswerEvent> EngineLoop::last_events(
    std::vector<Request> requests, const std::function<void(size_t answered)>& on_step) {
  Mailbox mailbox(*this);
  std::unordered_map<int64_t, size_t> awaited;
  for (size_t i = 0; i < requests.size(); ++i)
    awaited.emplace(add(std::move(requests[i]), mailbox), i);
  std::vector<AnswerEvent> events(requests.size());
  while (!awaited.empty()) {
    for (AnswerEvent& event : next(mailbox)) {
      if (event.token) continue;
      const auto found = awaited.find(event.id);
      events[found->second] = std::move(event);
      awaited.erase(found);
    }
    if (on_step) on_step(events.size() - awaited.size());
  }
  return events;
}

bool EngineLoop::has_live(const Mailbox& mailbox) {
  return between_steps([&](Engine&) { return !mailbox.events_.empty() || is_live(mailbox); });
}

std::vector<AnswerEvent> EngineLoop::next(Mailbox& mailbox) {
  return between_steps([&](Engine&) {
    if (mailbox.events_.empty() && is_live(mailbox) && !text_.step(*this))
      fail("expected a step for the requests that are live, found nothing to compute");
    return std::exchange(mailbox.events_, {});
  });
}

void EngineLoop::on_text(int64_t id, std::string_view piece, const TokenOutput& token) {
  const auto found = mailboxes_.find(id);
  if (found == mailboxes_.end() || token.finish == FinishReason::failed) return;
  found->second->events_.push_back({.id = id, .token = token, .text = std::string(piece)});
}

void EngineLoop::on_finished(int64_t id, const TextAnswer& answer) {
  const auto found = mailboxes_.find(id);
  if (found == mailboxes_.end()) return;
  found->second->events_.push_back({.id = id, .answer = answer});
  mailboxes_.erase(found);
}

void EngineLoop::on_vector(int64_t id, const std::vector<float>& vector) {
  const auto found = mailboxes_.find(id);
  if (found == mailboxes_.end()) return;
  found->second->events_.push_back({.id = id, .vector = vector});
  mailboxes_.erase(found);
}

}  // namespace invar
